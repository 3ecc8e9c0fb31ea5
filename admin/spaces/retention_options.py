"""The options of ``streamlease space create|alter`` that say what a space keeps."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.quantities import format_duration, parse_count, parse_duration, parse_size

if TYPE_CHECKING:
    from streamlease.streams.spaces.retention import Retention

Age = Annotated[
    str | None,
    typer.Option(
        "--retention",
        metavar="AGE",
        help="Keep messages this long, such as 7d or 12h; 'none' keeps them for ever.",
    ),
]
Bytes = Annotated[
    str | None,
    typer.Option(
        "--retention-bytes",
        metavar="SIZE",
        help="Keep this many bytes per stream, such as 1GiB; 'none' keeps all.",
    ),
]
Messages = Annotated[
    str | None,
    typer.Option(
        "--retention-messages", metavar="N", help="Keep this many messages per stream; 'none' keeps all."
    ),
]
Force = Annotated[
    bool | None,
    typer.Option(
        "--retention-force/--no-retention-force",
        help="Remove messages even if a group has not consumed them.",
    ),
]
GroupExpiry = Annotated[
    str | None,
    typer.Option(
        "--group-expiry",
        metavar="AGE",
        help="Groups idle for longer than this no longer keep messages from being "
        "removed. Default: 7d; 'never' turns this off.",
    ),
]


@dataclass(frozen=True, slots=True)
class RetentionOptions:
    """What these options say, as text; None for what is not given."""

    age: str | None
    size: str | None
    messages: str | None
    force: bool | None
    expiry: str | None

    @property
    def anything(self) -> bool:
        """Whether any of them is given."""
        return any(one is not None for one in astuple(self))

    def changed(self, retention: Retention) -> Retention:
        """`retention` with what they say; an option that is not given changes nothing.

        Raises:
            InvalidOption: a value is not acceptable, or the whole makes no sense.
        """
        from streamlease.streams.spaces.retention import Retention

        values: dict[str, Any] = retention.model_dump()
        if self.age is not None:
            values["age_ms"] = None if self.age == "none" else parse_duration("--retention", self.age)
        if self.size is not None:
            values["bytes"] = None if self.size == "none" else parse_size("--retention-bytes", self.size)
        if self.messages is not None:
            values["messages"] = None if self.messages == "none" else _count(self.messages)
        if self.force is not None:
            values["force"] = self.force
        if self.expiry is not None:
            values["group_expiry_ms"] = parse_expiry("--group-expiry", self.expiry)
        return Retention(**values)


def parse_expiry(what: str, text: str) -> int:
    """A time after which a group expires in milliseconds; 0 for ``never``.

    Raises:
        InvalidOption: it is no duration.
    """
    return 0 if text == "never" else parse_duration(what, text)


def sentence(retention: Retention) -> str:
    """Retention for people."""
    expiry = retention.group_expiry_ms
    idle = (
        f"idle for {format_duration(expiry)} stop holding messages"
        if expiry
        else "never stop holding messages"
    )
    return f"keeps {retention}; groups {idle}"


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 17):
        raise InvalidOption(
            f"--retention-messages {ascii(text)[:80]} is no number of messages: write one, such as 100000"
        )
    return parse_count("--retention-messages", int(text))
