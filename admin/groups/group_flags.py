"""The options of groups as the command takes them, for ``group declare`` and ``group alter``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.quantities import parse_duration

Sub = Annotated[str, typer.Argument(metavar="SUB", help="'$shared/GROUP/FILTER' or '$queue/GROUP/FILTER'.")]

Expiry = Annotated[
    str | None,
    typer.Option(
        metavar="AGE",
        help="After being idle this long (such as 30d, or 'never') the group no longer "
        "keeps messages from being removed. Default: the setting of its spaces.",
    ),
]
Strategy = Annotated[
    str | None,
    typer.Option(
        metavar="count|rate|lag|NAME",
        help="How streams are shared out: by their number, by messages per second, by waiting messages, "
        "or by a strategy of your own. Default: that of the leader host (count).",
    ),
]
RevocationTimeout = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="How long a consumer may take to give back a stream, such as 10s. Default: 30s, and without a "
        "limit for a stream in a Spark query's open micro-batch.",
    ),
]
OnPoisonWord = Annotated[
    str | None,
    typer.Option(
        metavar="dead-letter|stop",
        help="What to do with a message that has failed --max-failures times. Default: dead-letter.",
    ),
]
MaxFailures = Annotated[int | None, typer.Option(help="How many times one message may fail. Default: 5.")]
RetryDelay = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION|none",
        help="How long to wait before a failed message is delivered again; the wait doubles each time. "
        "Default: 500ms.",
    ),
]
MaxRetryDelay = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="The longest such wait, at most 1h. Default: 1m."),
]
DeadLetterTopic = Annotated[
    str | None,
    typer.Option(metavar="TOPIC", help="Dead letters are published below this topic. Default: $dead/GROUP."),
]


def given(
    strategy_name: str | None,
    revocation_timeout: str | None,
    on_poison: str | None,
    max_failures: int | None,
    retry_delays: tuple[str | None, str | None],
    dead_letters: str | None,
) -> dict[str, Any]:
    """The fields of `GroupOptions` that were given; whether they fit together, `check_options` says.

    Raises:
        InvalidOption: a value is not acceptable.
    """
    from streamlease.leader.core.planning.strategies import strategy
    from streamlease.protocol.group_options import ON_POISON

    if strategy_name is not None:
        strategy(strategy_name)
    if on_poison is not None and on_poison not in ON_POISON:
        raise InvalidOption(f"--on-poison {ascii(on_poison)[:80]} is unknown: use {' or '.join(ON_POISON)}")
    fields = {
        "strategy": strategy_name,
        "revocation_timeout_ms": _duration("--revocation-timeout", revocation_timeout),
        "on_poison": on_poison,
        "max_failures": max_failures,
        "retry_delay_ms": 0 if retry_delays[0] == "none" else _duration("--retry-delay", retry_delays[0]),
        "max_retry_delay_ms": _duration("--max-retry-delay", retry_delays[1]),
        "dead_letters": dead_letters,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _duration(name: str, text: str | None) -> int | None:
    return None if text is None else parse_duration(name, text)
