"""Queries whose progress Spark tracks asynchronously: the checkpoint is behind what went through the sink."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from streamlease.registry import keys
from tests.spark.test_query import held_all
from tests.spark.world import SUBSCRIPTION, Checkpoint, Query, Seen, World, wait_for, within

Offset = dict[str, Any]


def next_batch(query: Query, start: Offset) -> tuple[Offset, list[Seen]]:
    """The next micro-batch that has something, as Spark makes it then: nothing is committed first."""
    for _ in within(60.0):
        end = query.reader.latestOffset(start, query.reader.getDefaultReadLimit())
        if end != start:
            return end, query.read(start, json.loads(json.dumps(end)))
    raise AssertionError("no batch")


def begin(world: World, *, empty: bool) -> tuple[Query, list[Offset], list[Seen]]:
    """A query that made four micro-batches of what was published, perhaps after an empty one."""
    world.publish(3)
    query = world.query()
    start = query.reader.initialOffset()
    ends, rows = [start], list[Seen]()
    if empty:
        query.read(start, start)
    world.lead()
    held_all(query, world)
    for number in range(1, 5):
        while len(rows) < 12 * number:
            end, some = next_batch(query, ends[-1])
            ends.append(end)
            rows += some
        if number < 4:
            world.publish(3)
    return query, ends if empty else ends[1:], rows


def restarted(world: World, logged: list[Offset], commits: int) -> Query:
    """Another process, whose checkpoint has just these ends of micro-batches."""
    return world.query(Checkpoint([json.dumps(end) for end in logged], commits))


def rest(world: World, query: Query, total: int) -> list[Seen]:
    query.run(lambda: len(query.checkpoint.rows) >= total)
    wait_for(lambda: not query.trigger() and world.all_committed)
    return query.checkpoint.rows


def settle(query: Query, end: Offset) -> None:
    """Have the query say that its last micro-batch is done, as Spark does at the next question."""
    assert query.reader.latestOffset(end, query.reader.getDefaultReadLimit()) == end
    wait_for(lambda: not query.session.query.machine.cuts.finished.unconfirmed)


def check(world: World, *parts: list[Seen]) -> None:
    rows = [row[:2] for part in parts for row in part]
    assert sorted(rows) == sorted((s, n) for s in world.streams for n in range(world.published[s]))


def check_repeated(world: World, before: list[Seen], after: list[Seen]) -> None:
    """The last cut came again just as it was, and nothing else."""
    again = [row for row in after if row in before]
    assert again
    assert again == before[-len(again) :]
    check(world, before, [row for row in after if row not in before])


def test_a_clean_stop_and_a_checkpoint_of_the_first_micro_batch(world: World) -> None:
    query, ends, before = begin(world, empty=False)
    settle(query, ends[-1])
    query.stop()
    again = restarted(world, ends[:1], 1)
    world.publish(2)
    check(world, before, rest(world, again, 8))


def test_a_checkpoint_that_knows_no_cut_yet(world: World) -> None:
    query, ends, before = begin(world, empty=True)
    settle(query, ends[-1])
    query.stop()
    again = restarted(world, ends[:1], 1)
    world.publish(2)
    check(world, before, rest(world, again, 8))


def test_a_stop_with_the_last_micro_batch_unconfirmed_repeats_no_more_than_that(world: World) -> None:
    query, ends, before = begin(world, empty=False)
    query.stop()
    again = restarted(world, ends[:1], 1)
    world.publish(2)
    check_repeated(world, before, rest(world, again, 9))


def test_a_killed_query_reads_the_same_cut_again(world: World) -> None:
    query, ends, before = begin(world, empty=False)
    query.kill()
    again = restarted(world, ends[:1], 1)
    world.publish(2)
    check_repeated(world, before, rest(world, again, 9))


@pytest.mark.slow
def test_a_logged_micro_batch_that_is_done_is_not_read_again(world: World) -> None:
    query, ends, before = begin(world, empty=False)
    settle(query, ends[-1])
    query.stop()
    again = restarted(world, ends[:2], 1)
    world.publish(2)
    after = rest(world, again, 8)
    check(world, before, after)


def test_ordinary_queries_are_not_taken_for_such(world: World) -> None:
    world.publish(3)
    world.lead()
    query = world.query()
    held_all(query, world)
    for number in range(1, 4):
        query.run(lambda number=number: len(query.checkpoint.rows) == 12 * number)  # type: ignore[misc]
        world.publish(3)
    with redis.Redis.from_url(world.url) as client:
        assert not client.exists(keys.late(SUBSCRIPTION.id))
