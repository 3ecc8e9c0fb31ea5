"""``streamlease group dead-letters``, and groups that are declared with options."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from streamlease.agent import blocking
from tests.admin.command import Command

SUB = "$shared/g/flights/#"
LIST = ("group", "dead-letters", "list", SUB)


def fail_first(command: Command) -> tuple[str, int, str]:
    """A program that cannot process the first message it gets; stream, offset and what became of it."""
    with blocking.connect(command.url) as client, client.subscribe(SUB) as subscription:
        batch = subscription.poll(60)
        assert batch is not None
        return str(batch.stream), batch.start, batch.fail(batch.start, ValueError("no\nnumber"))


def test_dead_letters_are_listed_and_replayed_once(flights: Command) -> None:
    flights.ok("publish", "flights/a", text="1\n2\n3\n")
    flights.ok("group", "declare", SUB, "--from", "earliest", "--max-failures", "1")
    stream, offset, verdict = fail_first(flights)
    assert verdict == "passed"
    (letter,) = flights.ok(*LIST, "--json").document["dead_letters"]
    assert (letter["topic"], letter["stream"], letter["offset"]) == ("flights/a", stream, offset)
    assert (letter["failures"], letter["cause"], letter["replayed"]) == (1, "ValueError: no\\nnumber", None)
    place = letter["place"]
    replay = ("group", "dead-letters", "replay", SUB)
    (would,) = flights.ok(*replay, place, "--dry-run", "--json").document["dead_letters"]
    assert would["replayed"] is None
    (done,) = flights.ok(*replay, "--all", "--json").document["dead_letters"]
    assert (done["replayed"]["stream"], done["replayed"]["offset"]) == (stream, 3)
    assert flights.ok(*replay, "--all", "--json").document["dead_letters"] == []
    (again,) = flights.ok(*replay, place, "--json").document["dead_letters"]
    assert again["replayed"]["offset"] == 3
    assert "is no dead letter of the group" in flights(*replay, "x@1").err


def test_a_stopped_stream_is_explained_and_goes_on_by_command(flights: Command) -> None:
    flights.ok("publish", "flights/a", text="1\n2\n")
    flights.ok(
        "group", "declare", SUB, "--from", "earliest", "--max-failures", "1", "--on-poison", "stop"
    )  # fmt: skip
    stream, offset, verdict = fail_first(flights)
    assert (offset, verdict) == (0, "stopped")
    streams = flights.ok("group", "describe", SUB, "--json").document["streams"]
    (stopped,) = [one for one in streams if one["stream"] == stream]
    assert stopped["state"] in ("revoking", "revoked", "stopped")
    outcome = flights.ok("group", "dead-letters", "put", SUB, stream, "--json").document
    assert (outcome["stream"], outcome["offset"]) == (stream, 0)
    with blocking.connect(flights.url) as client, client.subscribe(SUB) as subscription:
        batch = subscription.poll(60)
        assert batch is not None
        assert [message.payload for message in batch.messages] == [b"2"]
    refused = flights("group", "dead-letters", "retry", SUB, stream)
    assert refused.code == 1
    assert "is not stopped" in refused.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--on-poison", "ignore"), "--on-poison 'ignore' is unknown: use dead-letter or stop"),
        (("--strategy", "best"), "strategy 'best' does not exist: use one of"),
        (("--from", "99"), "never had offset 98"),
    ],
)
def test_options_that_make_no_sense_are_refused(flights: Command, words: tuple[str, ...], text: str) -> None:
    refused = flights("group", "declare", SUB, *words)
    assert refused.code in (1, 2)
    assert text in refused.err


def test_a_group_may_begin_at_a_time(flights: Command) -> None:
    flights.ok("publish", "flights/a", text="1\n2\n")
    between = datetime.now(UTC).isoformat()
    flights.ok("publish", "flights/a", text="3\n")
    made = flights.ok("group", "declare", SUB, "--from", between, "--json").document
    assert made["start"] == between
    streams = flights.ok("group", "describe", SUB, "--json").document["streams"]
    assert sum(one["lag"] for one in streams) == 1
