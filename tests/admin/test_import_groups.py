"""``import redis-stream --group``: what a consumer group of Redis has not done comes over, once."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import redis

from tests.admin.command import Command, until

WORDS = ("import", "redis-stream", "old", "--space", "new", "--topic", "new/x", "--group", "jobs")


@pytest.fixture
def old(command: Command, store: redis.Redis) -> redis.Redis:
    """100 entries, of which two consumers were given 60 and have acknowledged all but every fifth."""
    command.ok("space", "create", "new", "--topics", "new/#", "--streams", "2")
    fill(store, 0, 100)
    store.xgroup_create("old", "jobs", "0")
    read(store, "one", 30)
    read(store, "two", 30)
    ids = [id for id, _ in store.xrange("old")]
    store.xack("old", "jobs", *(id for n, id in enumerate(ids[:60]) if n % 5))
    return store


def fill(store: redis.Redis, first: int, count: int) -> None:
    with store.pipeline(transaction=False) as pipe:
        for n in range(first, first + count):
            pipe.xadd("old", {"n": str(n)}, id=f"{1_700_000_000_000 + n // 10}-{n % 10 + 1}")
        pipe.execute()


def read(store: redis.Redis, consumer: str, count: int) -> list[bytes]:
    answer: Any = store.xreadgroup("jobs", consumer, {"old": ">"}, count=count)
    return [id for id, _ in answer[0][1]]


def imported(command: Command) -> list[int]:
    words = ("consume", "new/#", "--from", "earliest", "--json", "--count")
    total = command.ok("space", "show", "new", "--json").document
    count = sum(stream["next"] for stream in total["streams"])
    found = command.ok(*words, str(count)).documents if count else []
    return [int(json.loads(one["payload"])["n"]) for one in found]


def run(command: Command, *words: str) -> dict[str, Any]:
    """Its document; the consumers of the fixture were there a moment ago, which is told."""
    outcome = command(*WORDS, "--json", *words)
    assert outcome.code == 0, outcome
    document: dict[str, Any] = outcome.document
    return document


NOT_DONE = [*range(0, 60, 5), *range(60, 100)]


def test_it_begins_at_the_last_delivered_id_and_brings_what_is_pending(
    command: Command, old: redis.Redis
) -> None:
    document = run(command)
    assert (document["imported"], document["pending"], document["gone"]) == (52, 12, 0)
    assert imported(command) == NOT_DONE
    assert run(command)["imported"] == 0
    fill(old, 100, 5)
    assert run(command)["imported"] == 5
    assert imported(command) == [*NOT_DONE, *range(100, 105)]
    assert old.xlen("old") == 105, "nothing is taken from the old stream"
    assert old.xpending("old", "jobs")["pending"] == 12


def test_who_still_reads_is_named(command: Command, old: redis.Redis) -> None:
    outcome = command(*WORDS)
    assert outcome.code == 0
    (note,) = outcome.err.splitlines()
    assert note.startswith("note: one, two of jobs read old a moment ago")
    assert outcome.out == "imported 52 entries into new, 12 of them pending in jobs\n"


def test_the_line_stays_where_it_was_though_an_old_consumer_goes_on(
    command: Command, old: redis.Redis
) -> None:
    """An entry is missing in neither place: what the import takes over it takes to its end."""
    bad = {"n": "x", "where": "elsewhere/x"}
    old.xadd("old", bad)
    stopped = command(*WORDS[:5], "--topic-field", "where", *WORDS[7:])
    assert stopped.code != 0  # nothing was imported yet: the line may be drawn again
    first = run(command)
    assert first["imported"] == 53
    ids = read(old, "one", 1000)
    old.xack("old", "jobs", *ids)
    fill_late = old.xadd("old", {"n": "200"})
    read(old, "one", 10)
    old.xack("old", "jobs", fill_late)
    assert run(command)["imported"] == 1
    assert imported_raw(command)[-1] == "200"


def imported_raw(command: Command) -> list[str]:
    words = ("consume", "new/#", "--from", "earliest", "--json", "--count", "54")
    return [json.loads(one["payload"])["n"] for one in command.ok(*words).documents]


def test_pending_entries_that_were_trimmed_are_told(command: Command, old: redis.Redis) -> None:
    ids = [id for id, _ in old.xrange("old")]
    old.xdel("old", ids[0], ids[5], ids[55])
    document = run(command)
    assert (document["imported"], document["pending"], document["gone"]) == (49, 9, 3)
    assert imported(command) == [n for n in NOT_DONE if n not in (0, 5, 55)]


def test_a_group_that_has_done_everything_leaves_nothing(command: Command, old: redis.Redis) -> None:
    ids = [id for id, _ in old.xrange("old")]
    read(old, "one", 100)
    old.xack("old", "jobs", *ids)
    assert run(command)["imported"] == 0
    fill(old, 100, 3)
    assert imported(command) == []
    run(command)
    assert imported(command) == [100, 101, 102]


def test_what_cannot_be_is_one_line(command: Command, old: redis.Redis) -> None:
    old.xadd("bare", {"n": "1"})
    for words, reason in (
        ((*WORDS[:-1], "others"), "has no group 'others': its groups are 'jobs'"),
        (("import", "redis-stream", "bare", *WORDS[3:]), "its groups are none"),
        (("import", "redis-stream", "nothing", *WORDS[3:], "--follow"), "there is no key 'nothing'"),
        ((*WORDS, "--delete"), "exclude each other"),
    ):
        refused = command(*words)
        assert (refused.code, refused.err.count("\n")) == (2, 1), refused
        assert reason in refused.err
    run(command)
    other = command(*WORDS[:-2])
    assert "was begun with --group 'jobs', and now it is not set" in other.err


@pytest.mark.cluster
def test_killed_at_any_moment_it_brings_each_entry_once(command: Command, old: redis.Redis) -> None:
    """Thousands of pending entries, and new ones all the time; an old consumer has not been stopped."""
    dice = random.Random(11)
    fill(old, 100, 6000)
    ids = read(old, "one", 4000)
    old.xack("old", "jobs", *dice.sample(ids, 1500))
    line = old.xinfo_groups("old")[0]["last-delivered-id"]
    waiting = pending(old)
    kept = [n for n, (id, _) in enumerate(old.xrange("old")) if id in waiting or after(id, line)]
    total, process = 6100, command.start(*WORDS, "--follow")
    for _ in range(4):
        enough = min(len(kept) - 100, there(old) + dice.randint(100, 1500))
        until(lambda enough=enough: there(old) >= enough)
        process.kill()
        process.communicate()
        fill(old, total, 100)
        kept += range(total, total + 100)
        total += 100
        read(old, "one", 50)  # from here on these are pending, and above the line all the same
        process = command.start(*WORDS, "--follow")
    try:
        until(lambda: there(old) >= len(kept))
    finally:
        process.kill()
        process.communicate()
    found = imported(command)
    assert sorted(found) == kept
    assert len(found) == len(set(found))


def pending(store: redis.Redis) -> set[bytes]:
    found: Any = store.xpending_range("old", "jobs", "-", "+", 10_000)
    return {one["message_id"] for one in found}


def after(id: bytes, line: bytes) -> bool:
    return [*map(int, id.split(b"-"))] > [*map(int, line.split(b"-"))]


def there(store: redis.Redis) -> int:
    return sum(int(store.hget(key, "next") or 0) for key in store.scan_iter("sl:{new.0.*}:meta"))
