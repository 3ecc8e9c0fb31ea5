"""Queries that read what is available now: when they begin and end, and what they say if they cannot."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from streamlease.agent.client import Client
from streamlease.protocol.errors import Halted, InvalidOption, StoreUnavailable
from streamlease.protocol.group_options import GroupOptions
from streamlease.spark.core import available, targets
from tests.awake import awake
from tests.spark.refusals import one_line
from tests.spark.test_query import newest, ranges
from tests.spark.test_query_acts import act
from tests.spark.test_query_faults import rows, started
from tests.spark.world import SUBSCRIPTION, Query, Seen, World, run_together


def only_batch(query: Query) -> list[Seen]:
    """The rows of a query with the trigger ``once``."""
    start = query.reader.initialOffset()
    end = query.reader.latestOffset(start, ReadAllAvailable())
    return query.read(start, json.loads(json.dumps(end)))


def ask_once(query: Query) -> None:
    query.reader.latestOffset(query.reader.initialOffset(), ReadAllAvailable())


@pytest.mark.parametrize("ask", [Query.run_to_the_end, ask_once], ids=["availableNow", "once"])
def test_a_paused_group_is_said_at_once_with_who_and_since_when(
    world: World, ask: Callable[..., Any]
) -> None:
    world.publish(5)
    world.lead()
    act(world, "pause")
    text = r"^\$shared/g/t/#: the group is paused by ann since 20.* UTC, until it is resumed, and 4 streams"
    with awake() as clock, pytest.raises(Halted, match=text) as refused:
        ask(world.query(once=ask is Query.run_to_the_end))
    assert clock.seconds < 20, "a tenth of that on a quiet machine"
    one_line(refused.value)


def test_a_pause_in_the_middle_ends_the_query_after_its_micro_batch(world: World) -> None:
    world.publish(5)
    world.lead()
    query = world.query(once=True, maxOffsetsPerTrigger=4)
    query.run_until("read")
    act(world, "pause")
    with pytest.raises(Halted, match="paused by ann"):
        query.run_to_the_end()
    assert 0 < rows(query) < world.total
    act(world, "resume")
    query.stop()
    again = world.query(query.checkpoint, once=True)
    again.run_to_the_end()
    world.check(again.checkpoint)


def test_a_group_that_is_paused_after_all_was_read_ends_the_query(world: World) -> None:
    world.publish(5)
    world.lead()
    query = world.query()
    query.run(lambda: world.all_committed)
    act(world, "pause")
    once = world.query(once=True)
    once.run_to_the_end()
    assert not rows(once)


def stop_at(world: World, offset: int) -> str:
    """Have one stream stop at that offset; its name."""
    found: list[str] = []

    async def fail() -> None:
        async with (
            Client(world.url, embedded=False) as client,
            client.subscribe(str(SUBSCRIPTION), max_batch=1) as batches,
        ):
            async for batch in batches:
                if batch.start == offset:
                    assert await batch.fail(offset, ValueError("no number")) == "stopped"
                    found.append(str(batch.stream))
                    return
                await batch.commit()

    world._thread.call(fail())
    return found[0]


def stopping(world: World) -> None:
    options = GroupOptions(on_poison="stop", max_failures=1)
    world._thread.call(world._client.groups.declare(SUBSCRIPTION, "earliest", options=options))
    world.lead()


def test_all_but_a_stopped_stream_is_read_and_then_it_is_said(world: World) -> None:
    world.publish(5)
    stopping(world)
    stream = stop_at(world, 2)
    before = world.committed
    assert before[stream] == 2
    query = world.query(once=True, maxOffsetsPerTrigger=4)
    text = (
        rf"all else .* is read, but stream {stream} stands at .*offset 2 failed 1 times \(.*no number.*retry"
    )
    with pytest.raises(Halted, match=text) as refused:
        query.run_to_the_end()
    one_line(refused.value)
    wanted = {(s, offset) for s in world.streams if s != stream for offset in range(before[s], 5)}
    assert {row[:2] for row in query.checkpoint.rows} == wanted
    act(world, "retry", stream=stream)
    again = world.query(query.checkpoint, once=True)
    query.stop()
    again.run_to_the_end()
    assert {row[:2] for row in again.checkpoint.rows} == wanted | {(stream, offset) for offset in range(2, 5)}


def test_the_only_batch_leaves_out_a_stopped_stream(world: World) -> None:
    world.publish(5)
    stopping(world)
    stream = stop_at(world, 0)
    wanted = {(s, offset) for s in world.streams for offset in range(world.committed[s], 5)}
    found = {row[:2] for row in only_batch(world.query())}
    assert found == {one for one in wanted if one[0] != stream}


@pytest.mark.parametrize("ask", [Query.run_to_the_end, only_batch], ids=["availableNow", "once"])
@pytest.mark.parametrize("phase", ["sunk", "committed"])
@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.slow
def test_what_a_killed_query_held_is_read_by_one_with_a_new_checkpoint(
    make_world: Callable[..., World], streams: int, phase: Any, ask: Callable[..., Any]
) -> None:
    """Until its session times out, the leader takes the dead query for a living one.

    What was open at its death comes as a cut of its own, which is all that fits into the only batch.
    """
    world = make_world(streams)
    world.lead()
    query = started(world, sessionTimeoutMs=3000)
    query.run(lambda: world.all_committed)
    world.publish(5)
    query.run_until(phase)
    query.kill()
    world.publish(2)
    again = world.query(once=ask is Query.run_to_the_end)
    found = ask(again) or again.checkpoint.rows
    opened = ranges(newest(query.checkpoint))
    ends = {s: opened.get(s, (5, 12))[1] if ask is only_batch else 12 for s in world.streams}
    assert {row[:2] for row in found} == {(s, offset) for s, end in ends.items() for offset in range(5, end)}


def alter(world: World, streams: int) -> None:
    """The space gets another generation, with so many streams."""
    space = world._thread.call(world._client.spaces.generations.alter("s", streams=streams))
    world.streams += [str(stream) for stream in space.streams() if str(stream) not in world.streams]


@pytest.mark.parametrize("consumed", [True, False])
@pytest.mark.slow
def test_the_only_batch_comes_after_a_space_was_altered(world: World, consumed: bool) -> None:
    world.publish(5)
    world.lead()
    if consumed:
        query = world.query()
        query.run(lambda: world.all_committed)
        query.stop()
    alter(world, 2)
    new = {stream: 3 for stream in world.streams if stream.startswith("s.1.")}
    world.publish(new)
    first = only_batch(world.query())
    assert {row.stream for row in first} == (new.keys() if consumed else set(world.streams) - new.keys())


def test_the_only_batch_is_refused_beside_other_queries(world: World) -> None:
    world.lead()
    other = world.query()
    other.run(lambda: other.held.keys() == set(world.streams))  # and it can give back what it holds
    world.publish(5)
    once = world.query()
    with pytest.raises(
        InvalidOption, match=r"once=True.* beside .* such as q-.*availableNow=True"
    ) as refused:
        ask_once(once)
    one_line(refused.value)
    once.stop()
    patient = world.query(sessionTimeoutMs=3_600_000)
    assert {row.stream for row in only_batch(patient)} < set(world.streams)


@pytest.mark.slow
def test_what_another_query_keeps_in_its_open_cut_is_that_query_s_to_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "CUT_SECONDS", 0.5)
    world.lead()
    slow = started(world)
    slow.run(lambda: world.all_committed)
    world.publish(5)
    slow.run_until("logged")
    world.publish(5)
    once = world.query(once=True)
    once.run_to_the_end()
    assert not rows(once)
    once.stop()
    slow.run(lambda: rows(slow) == world.total)
    world.check(slow.checkpoint)


@pytest.mark.slow
def test_what_stands_behind_another_query_s_streams_is_not_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "CUT_SECONDS", 0.5)
    world.lead()
    slow = started(world)
    slow.run(lambda: world.all_committed)
    world.publish(5)
    slow.run_until("logged")
    alter(world, 2)
    world.publish({stream: 3 for stream in world.streams if stream.startswith("s.1.")})
    once = world.query(once=True)
    once.run_to_the_end()
    assert not rows(once)
    run_together(slow, once, done=lambda: rows(slow, once) == world.total)
    world.check(slow.checkpoint, once.checkpoint)


@pytest.mark.slow
def test_a_query_without_a_leader_says_what_is_missing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available, "SETTLE_SECONDS", 1.0)
    world.publish(5)
    world.declare()
    text = "not settled by a leader within 1 s .no leader answers: no leader host is there: start one with"
    with pytest.raises(StoreUnavailable, match=text) as refused:
        world.query(once=True).run_to_the_end()
    one_line(refused.value)
