"""Operators' acts on the group of a running query: resets, releases and pauses between and inside of cuts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from streamlease.protocol.acts import parse
from tests.spark.world import SUBSCRIPTION, Checkpoint, Phase, World, run_together, wait_for


def act(world: World, name: str, **more: Any) -> dict[str, Any]:
    return world._thread.call(world._client.act(SUBSCRIPTION, parse(name, **more), who="ann"))


def times(checkpoint: Checkpoint, stream: str) -> list[int]:
    """How often each offset of the stream is in the sink."""
    counts = Counter(row.offset for row in checkpoint.rows if row.stream == stream)
    return [counts[offset] for offset in range(max(counts) + 1)] if counts else []


def test_a_query_goes_on_from_where_its_streams_were_reset_to(world: World) -> None:
    world.publish(6)
    world.lead()
    query = world.query()
    query.run(lambda: world.all_committed)
    back, on = world.streams[0], world.streams[1]
    world.publish({on: 4})
    lease_epochs = query.held
    act(world, "reset", offsets={back: 2, on: 10})
    wait_for(lambda: query.held.get(back, 0) > lease_epochs[back])
    world.publish(3)
    query.run(lambda: world.all_committed)
    assert times(query.checkpoint, back) == [1, 1, 2, 2, 2, 2, 1, 1, 1]
    skipped = times(query.checkpoint, on)
    assert skipped[:6] == [1] * 6
    assert skipped[10:] == [1, 1, 1]
    for stream in world.streams[2:]:
        assert times(query.checkpoint, stream) == [1] * 9


@pytest.mark.parametrize("phase", ["fixed", "logged", "read", "sunk"])
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.slow
def test_a_reset_while_a_cut_is_open_ends_the_stream_s_part_of_it(
    world: World, phase: Phase, restart: bool
) -> None:
    world.publish(6)
    world.lead()
    query = world.query()
    query.run_until(phase)
    checkpoint = query.checkpoint
    stream = world.streams[0]
    if restart:
        query.kill()
    act(world, "reset", offsets={stream: 3})
    if restart:
        query = world.query(checkpoint)
    world.publish(3)
    query.run(lambda: world.all_committed, seconds=40)
    seen = times(checkpoint, stream)
    assert seen[3:] == [seen[3]] * 3 + [1] * 3, (
        "what follows the new place comes, at most once more than before"
    )
    assert all(count <= 2 for count in seen)
    assert seen[3] in (1, 2)
    for other in world.streams[1:]:
        assert times(checkpoint, other) == [1] * 9, "the other streams notice nothing"


def test_a_paused_query_finishes_its_cut_and_gets_no_other(world: World) -> None:
    world.publish(6)
    world.lead()
    query = world.query()
    query.run_until("read")
    act(world, "pause")
    world.publish(3)
    query.trigger()
    wait_for(lambda: not query.trigger() and not query.held)
    assert len(query.checkpoint.rows) == sum(world.committed.values()) <= 24
    act(world, "resume")
    query.run(lambda: world.all_committed)
    world.check(query.checkpoint)


@pytest.mark.slow
def test_a_released_stream_goes_to_the_other_query(world: World) -> None:
    world.publish(6)
    world.lead()
    one, other = world.query(), world.query()
    run_together(one, other, done=lambda: bool(one.held and other.held) and world.all_committed)
    stream = next(iter(one.held))
    act(world, "release", stream=stream)
    run_together(one, other, done=lambda: stream in other.held)
    world.publish(3)
    run_together(one, other, done=lambda: world.all_committed)
    world.check(one.checkpoint, other.checkpoint, duplicates=True)
