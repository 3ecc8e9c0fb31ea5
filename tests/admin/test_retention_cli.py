"""What a space keeps, set and changed by the command."""

from __future__ import annotations

import pytest
import redis

from tests.admin.command import Command, finish, until

NOTHING = {
    "age_ms": None,
    "bytes": None,
    "messages": None,
    "force": False,
    "group_expiry_ms": 604_800_000,
}


def retention(command: Command) -> dict[str, object]:
    found: dict[str, object] = command.ok("space", "show", "s", "--json").document["retention"]
    return found


def test_retention_is_set_when_a_space_is_created_and_altered(command: Command) -> None:
    made = command.ok(
        "space", "create", "s", "--topics", "s/#", "--retention", "7d", "--retention-bytes", "1GiB",
        "--retention-messages", "1000", "--retention-force", "--json",
    ).document  # fmt: skip
    assert made["retention"] == NOTHING | {
        "age_ms": 604_800_000,
        "bytes": 2**30,
        "messages": 1000,
        "force": True,
    }
    command.ok("space", "alter", "s", "--retention-bytes", "none", "--no-retention-force")
    command.ok("space", "alter", "s", "--group-expiry", "never", "--retention", "12h")
    assert retention(command) == NOTHING | {"age_ms": 43_200_000, "messages": 1000, "group_expiry_ms": 0}
    said = command.ok("space", "alter", "s", "--group-expiry", "1d12h").out
    assert said == (
        "space s keeps 12h, 1000 messages per stream; groups idle for 1d12h stop holding messages\n"
    )


def test_a_space_keeps_everything_unless_told_otherwise(flights: Command) -> None:
    document = flights.ok("space", "show", "flights", "--json").document
    assert document["retention"] == NOTHING


def test_the_same_space_with_another_retention_is_a_conflict(command: Command) -> None:
    command.ok("space", "create", "s", "--topics", "s/#", "--retention", "7d")
    command.ok("space", "create", "s", "--topics", "s/#")
    command.ok("space", "create", "s", "--topics", "s/#", "--retention", "1w")
    outcome = command("space", "create", "s", "--topics", "s/#", "--retention", "8d")
    assert outcome.code == 1
    assert "keeps 1w per stream, not 1w1d per stream" in outcome.err
    assert "streamlease space alter s" in outcome.err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--retention", "soon"], "--retention 'soon'"),
        (["--retention-bytes", "much"], "--retention-bytes 'much'"),
        (["--retention-messages", "-3"], "--retention-messages '-3'"),
        (["--retention-messages", "0"], "--retention-messages '0'"),
        (["--group-expiry", "0d"], "--group-expiry '0d'"),
        (["--retention-force", "--yes"], "forced but has no limit"),
        ([], "nothing to alter"),
    ],
)
def test_bad_values_are_named_and_change_nothing(command: Command, words: list[str], named: str) -> None:
    command.ok("space", "create", "s", "--topics", "s/#")
    outcome = command("space", "alter", "s", *words)
    assert outcome.code == 2
    assert named in outcome.err
    assert outcome.err.count("\n") == 1
    assert retention(command) == NOTHING


def test_altering_a_space_that_is_not_there(command: Command) -> None:
    outcome = command("space", "alter", "nowhere", "--retention", "7d")
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)
    assert "there is no space 'nowhere'" in outcome.err


def test_show_says_what_holds_data_back_who_and_since_when(command: Command, store: redis.Redis) -> None:
    command.ok("space", "create", "s", "--topics", "s/#", "--retention-messages", "1")
    command.ok("group", "declare", "$shared/slow/s/#", "--from", "earliest", "--expiry", "30d")
    for text in ("a", "b", "c"):
        command.ok("publish", "s/x", text=f"{text}\n")

    document = command.ok("space", "show", "s", "--json").document
    (stream,) = document["streams"]
    assert (stream["oldest"], stream["next"], stream["held_by"]) == (0, 3, "$shared/slow/s/#")
    assert (stream["held_from"], stream["held_since"]) == (0, None), "nobody has looked yet"
    entries = store.xrange("sl:{s.0.0}:log")
    stored = sum(len(name) + len(value) for _, fields in entries for name, value in fields.items())
    assert stream["bytes"] == stored
    (group,) = document["groups"]
    assert (group["subscription"], group["behind"]) == ("$shared/slow/s/#", 3)
    assert (group["expires_after_seconds"], group["expired_at"]) == (30 * 86_400, None)
    assert 0 <= group["idle_seconds"] < 60

    process = command.start("serve", "--http-port", "0")
    try:
        held = until(lambda: command.ok("space", "show", "s", "--json").document["streams"][0]["held_since"])
        assert held.startswith("20")
        text = command.ok("space", "show", "s").out
        assert "$shared/slow/s/#" in text and held in text
        command.ok("space", "alter", "s", "--retention-force", "--yes")
        shown = command.ok("space", "show", "s", "--json").document["streams"][0]
        assert (shown["held_by"], shown["held_since"]) == (None, None)
    finally:
        finish(process)


def test_reading_from_a_point_that_retention_passed_is_an_error(command: Command, store: redis.Redis) -> None:
    command.ok("space", "create", "s", "--topics", "s/#", "--retention-messages", "2")
    for text in ("a", "b", "c", "d"):
        command.ok("publish", "s/x", text=f"{text}\n")
    times = [line["timestamp"] for line in consume(command, "earliest", 4)]
    assert [line["payload"] for line in consume(command, times[1], 3)] == ["b", "c", "d"]
    process = command.start("serve", "--http-port", "0")
    try:
        until(lambda: store.hget("sl:{s.0.0}:meta", "floor") == b"2")
    finally:
        finish(process)
    for start in ("1", times[1]):
        outcome = command("consume", "s/#", "--from", start, "--count", "1", "--timeout", "5")
        assert outcome.code == 1
        assert "stream s.0.0 no longer has" in outcome.err and "the oldest left is 2" in outcome.err
    assert [line["payload"] for line in consume(command, times[2], 2)] == ["c", "d"]
    assert [line["payload"] for line in consume(command, "earliest", 2)] == ["c", "d"]


def consume(command: Command, start: str, count: int) -> list[dict[str, str]]:
    words = ("consume", "s/#", "--from", start, "--count", str(count), "--timeout", "20", "--json")
    found: list[dict[str, str]] = command.ok(*words).documents
    return found
