"""A user of Redis who may only look: all views work, all acts fail in one line, and nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from streamlease.admin.doctor.roles import OBSERVER
from tests.admin.command import Command, InProcess, until

SUB = "$shared/g/flights/#"


@pytest.fixture
def observer(command: Command, store: redis.Redis, tmp_path: Path) -> Iterator[InProcess]:
    """The command as the user of docs/redis.md, on a Redis on which others work."""
    store.execute_command(*OBSERVER.line().split())  # type: ignore[no-untyped-call]
    assert command.url is not None
    yield InProcess(tmp_path, command.url.replace("//", "//observer:PASSWORD@"))
    store.execute_command("ACL", "DELUSER", "observer")  # type: ignore[no-untyped-call]


@pytest.fixture
def used(flights: Command) -> Command:
    """A group that somebody consumed, with a history and without a leader."""
    flights.ok("publish", "flights/a", text="1\n2\n3\n")
    flights.ok("consume", SUB, "--from", "earliest", "--count", "2")
    flights.ok("group", "pause", SUB)
    return flights


def written(store: redis.Redis) -> dict[bytes, bytes]:
    """Every key with all that it holds; keys that expire belong to processes and come and go."""
    keys = sorted(key for key in store.keys("*") if store.ttl(key) == -1)
    return {key: store.dump(key) or b"" for key in keys}


VIEWS = [
    ["group", "list"],
    ["group", "describe", SUB],
    ["group", "history", SUB],
    ["group", "dead-letters", "list", SUB],
    ["space", "list"],
    ["space", "show", "flights"],
    ["status"],
    ["doctor"],
]
ACTS = [
    ["group", "declare", "$shared/new/flights/#"],
    ["group", "alter", SUB, "--max-failures", "2"],
    ["group", "pause", SUB],
    ["group", "resume", SUB],
    ["group", "drain", SUB, "b"],
    ["group", "move", SUB, "flights.0.0", "--to", "b"],
    ["group", "release", SUB, "flights.0.0", "--yes"],
    ["group", "rebalance", SUB],
    ["group", "reset", SUB, "--to", "earliest", "--execute"],
    ["group", "expire", SUB, "--yes"],
    ["group", "delete", SUB, "--yes"],
    ["group", "delete", SUB, "--yes", "--force"],
    ["group", "dead-letters", "retry", SUB, "flights.0.0"],
    ["group", "dead-letters", "put", SUB, "flights.0.0"],
    ["space", "create", "other", "--topics", "o/#"],
    ["space", "alter", "flights", "--streams", "8"],
    ["space", "seal", "flights", "--yes"],
    ["space", "delete", "flights", "--yes"],
    ["consume", SUB, "--count", "1", "--timeout", "20"],
]


def test_all_views_work_and_write_nothing(used: Command, observer: InProcess, store: redis.Redis) -> None:
    before = written(store)
    for words in VIEWS:
        seen = observer(*words, "--json")
        assert (seen.code, seen.err) == (0, ""), words
        assert seen.document, words
        text = observer(*words)
        assert (text.code, text.err) == (0, ""), words
    top = observer("top")
    assert (top.code, SUB in top.out) == (0, True), top
    plain = observer("consume", "flights/#", "--from", "earliest", "--count", "3", "--json")
    assert [message["payload"] for message in plain.documents] == ["1", "2", "3"]
    assert written(store) == before


def test_acts_fail_in_one_line_and_write_nothing(
    used: Command, observer: InProcess, store: redis.Redis
) -> None:
    before = written(store)
    for words in ACTS:
        done = observer(*words, "--json")
        assert (done.code, done.err.count("\n")) == (1, 1), (words, done)
        assert done.err.startswith("error: Redis does not let this user do that"), (words, done)
        assert done.document["error"]["type"] == "StoreRefused", words
    assert written(store) == before


def test_a_group_that_is_led_is_described_from_its_journal(
    flights: Command, observer: InProcess, store: redis.Redis
) -> None:
    process = flights.start("consume", SUB, "--from", "earliest")
    try:

        def held() -> Any:
            group = flights("group", "describe", SUB, "--json").document
            return group if [one["streams"] for one in group.get("borrowers", ())] == [4] else None

        asked = until(held)
        mailboxes = {key: store.xlen(key) for key in store.scan_iter("sl:{m:*")}
        seen = observer.ok("group", "describe", SUB, "--json").document
        assert seen["leader"] == asked["leader"]
        assert seen["state"] == "led"
        assert "may not ask the leader" in seen["note"]
        assert {s["stream"]: s["owner"] for s in seen["streams"]} == {
            s["stream"]: s["owner"] for s in asked["streams"]
        }
        assert {s["state"] for s in seen["streams"]} == {"held"}
        assert set(mailboxes) == set(store.scan_iter("sl:{m:*")), "nobody was written to"
    finally:
        process.kill()
        process.communicate()
