"""Queries that are killed, stopped, late, many at once, or without a leader for a while.

`World.check` says what must hold in each case: nothing lost, and a message twice only where a take-over
explains it, and then in the same part of a cut.
"""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from streamlease.leader.core.machine import LeaderConfig
from streamlease.protocol.acts import DescribeGroup
from streamlease.protocol.errors import Fenced
from streamlease.spark.core.checkpoint import CutOffset
from tests.spark.refusals import one_line
from tests.spark.test_query import held_all, newest, ranges
from tests.spark.world import SUBSCRIPTION, Checkpoint, Phase, Query, World, run_together, wait_for

pytestmark = pytest.mark.thorough

SHORT = 2000
"""The shortest session timeout (ms) that the options allow."""

PHASES: tuple[Phase, ...] = ("fixed", "logged", "read", "sunk", "committed")


def rows(*queries: Query) -> int:
    return sum(len(query.checkpoint.rows) for query in queries)


def started(world: World, batches: int = 1, **options: Any) -> Query:
    """A query that holds all streams and has some batches behind it."""
    query = world.query(**options)
    held_all(query, world)
    for _ in range(batches):
        world.publish(5)
        query.run_until("committed")
        query.run(lambda: rows(query) == world.total)
    return query


def logged_with_all_streams(query: Query, world: World) -> CutOffset:
    """The next cut, in the offset log, with five messages of each stream."""
    world.publish(5)
    unread = query.session.query.machine.cuts.unread
    wait_for(lambda: all(unread.end_of(stream) == world.published[stream] for stream in world.streams))
    query.run_until("logged")
    cut = newest(query.checkpoint)
    assert set(cut.ranges.streams) == set(world.streams)
    return cut


def resumed(world: World, query: Query, **options: Any) -> Query:
    """Another process of the same query."""
    return world.query(query.checkpoint, **options)


def forgotten(world: World, query: Query) -> None:
    """Wait until the leader has given the query up."""
    session = query.session.query.machine.cuts.who.session
    wait_for(lambda: session not in world.state().sessions)


# ---------------------------------------------------------------- one query, returning in time


@pytest.mark.parametrize("leave", [Query.kill, Query.stop], ids=["killed", "stopped"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("batches", [0, 1], ids=["first batch", "second batch"])
def test_a_query_that_returns_in_time_has_everything_once(
    world: World, batches: int, phase: Phase, leave: object
) -> None:
    world.lead()
    query = started(world, batches, sessionTimeoutMs=4000)
    world.publish(5)
    query.run_until(phase)
    assert callable(leave)
    leave(query)
    world.publish(5)
    again = resumed(world, query)
    again.run(lambda: rows(again) == world.total)
    world.check(again.checkpoint)
    again.run(lambda: world.all_committed)


@pytest.mark.parametrize("leave", [Query.kill, Query.stop], ids=["killed", "stopped"])
@pytest.mark.parametrize("phase", ["logged", "read", "sunk"])
def test_a_query_that_dies_in_its_first_batch_with_nothing_in_it_goes_on(
    world: World, phase: Phase, leave: object
) -> None:
    """As often as not: a sink that fails in the first batch fails in it after each restart."""
    world.lead()
    query = world.query()
    for _ in range(4):
        assert not query.trigger(phase, also_empty=True)
        assert (len(query.checkpoint.offsets), query.checkpoint.commits) == (1, 0)
        assert callable(leave)
        leave(query)
        query = resumed(world, query)
    query.trigger()
    world.publish(5)
    query.run(lambda: rows(query) == world.total)
    world.check(query.checkpoint)
    assert {json.loads(offset)["session"] for offset in query.checkpoint.offsets} == {
        newest(query.checkpoint).session
    }
    query.run(lambda: world.all_committed)


def test_a_query_that_dies_in_its_first_batch_keeps_a_cut_that_no_checkpoint_names(world: World) -> None:
    world.lead()
    query = world.query()
    query.trigger()
    wait_for(lambda: query.held.keys() == set(world.streams))
    start = newest(query.checkpoint)
    assert start.cut == 0
    world.publish(5)
    query.run_until("fixed")
    before = query.session.query.machine.cuts.open
    assert before is not None
    query.kill()
    other = world.query()
    other.trigger()
    again = resumed(world, query)
    again.session.thread.call(again.session.query.begin(start, finished=True))
    wait_for(lambda: sum(held.revoking for held in dict(again.session.query.machine.cuts.held).values()) == 2)
    again.run_until("logged")
    assert (newest(again.checkpoint).cut, ranges(newest(again.checkpoint))) == (1, ranges(before))
    run_together(again, other, done=lambda: rows(again, other) == world.total)
    world.check(again.checkpoint, other.checkpoint)


def test_an_open_cut_has_the_same_ranges_in_the_next_process(world: World) -> None:
    world.lead()
    query = started(world)
    world.publish(5)
    query.run_until("logged")
    cut = newest(query.checkpoint)
    query.kill()
    world.publish(5)
    again = resumed(world, query)
    assert again.session.ranges_of(cut) == cut.ranges
    assert again.session.ranges_of(cut) == cut.ranges


def test_a_cut_that_did_not_reach_the_checkpoint_is_fixed_again_as_it_was(world: World) -> None:
    world.lead()
    query = started(world)
    start = newest(query.checkpoint)
    world.publish(5)
    query.run_until("fixed")
    before = query.session.query.machine.cuts.open
    assert before is not None
    query.kill()
    world.publish(5)
    again = resumed(world, query)
    again.run_until("logged")
    after = newest(again.checkpoint)
    assert (after.cut, ranges(after)) == (start.cut + 1, ranges(before))


def test_no_stream_of_a_cut_that_did_not_reach_the_checkpoint_is_given_away_before_it_is_read(
    world: World,
) -> None:
    world.lead()
    query = started(world)
    start = newest(query.checkpoint)
    world.publish(5)
    query.run_until("fixed")
    before = query.session.query.machine.cuts.open
    assert before is not None
    query.kill()
    other = world.query()
    other.trigger()
    again = resumed(world, query)
    again.session.thread.call(again.session.query.begin(start, finished=True))
    wait_for(lambda: sum(held.revoking for held in dict(again.session.query.machine.cuts.held).values()) == 2)
    again.run_until("logged")
    after = newest(again.checkpoint)
    assert (after.cut, ranges(after)) == (start.cut + 1, ranges(before))
    run_together(again, other, done=lambda: rows(again, other) == world.total)
    world.check(again.checkpoint, other.checkpoint)


def test_an_older_checkpoint_is_refused_though_nothing_is_to_be_read(world: World) -> None:
    world.lead()
    query = started(world)
    old = query.checkpoint.copy()
    world.publish(5)
    query.run(lambda: world.all_committed)
    with pytest.raises(Fenced, match="checkpoint is older than its progress") as refused:
        world.query(old).run(lambda: False, 60.0)
    one_line(refused.value)


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "lives"])
def test_a_copy_with_an_open_batch_that_went_through_meanwhile_never_reads_it_as_empty(
    world: World, killed: bool
) -> None:
    world.publish(3)
    world.lead()
    query = world.query()
    query.run_until("sunk")
    copy = query.checkpoint.copy()
    query.checkpoint.commits += 1
    query.run(lambda: world.all_committed)
    if killed:
        query.kill()
    again = world.query(copy)
    with pytest.raises(Fenced, match="checkpoint is older than its progress") as refused:
        again.trigger()
    one_line(refused.value)
    again.kill()
    assert copy.commits == len(copy.offsets) - 1, "a sink that replaces a batch keeps its rows"


def test_a_copy_of_a_checkpoint_from_before_the_first_cut_is_refused_though_nothing_is_to_be_read(
    world: World,
) -> None:
    world.lead()
    query = world.query()
    query.trigger()
    old = query.checkpoint.copy()
    world.publish(5)
    query.run(lambda: world.all_committed)
    with pytest.raises(Fenced, match=r"cut 1 of query .* checkpoint is older than its progress") as refused:
        world.query(old).run(lambda: False, 60.0)
    one_line(refused.value)


@pytest.mark.parametrize("phase", PHASES)
def test_of_two_copies_of_a_new_checkpoint_the_later_one_goes_on_and_the_other_is_fenced(
    world: World, phase: Phase
) -> None:
    world.lead()
    query = world.query()
    query.trigger()
    copy = query.checkpoint.copy()
    world.publish(5)
    query.run_until(phase)
    other = world.query(copy)
    other.run(lambda: rows(other) == world.total)
    with pytest.raises(Fenced, match="another process runs under the same name"):
        query.run(lambda: False, 60.0)
    other.run(lambda: world.all_committed)
    world.check(other.checkpoint)


def test_the_next_process_finishes_the_last_cut_of_a_quiet_group(world: World) -> None:
    world.lead()
    query = started(world)
    world.publish(5)
    query.run_until("committed")
    query.kill()
    assert not world.all_committed
    again = resumed(world, query)
    again.run(lambda: world.all_committed)
    assert not again.trigger()


# ---------------------------------------------------------------- returning late


@pytest.mark.parametrize("phase", PHASES)
def test_a_query_that_returns_late_has_everything_once_if_nobody_took_over(
    world: World, phase: Phase
) -> None:
    world.lead()
    query = started(world, sessionTimeoutMs=SHORT)
    world.publish(5)
    query.run_until(phase)
    query.kill()
    forgotten(world, query)
    world.publish(5)
    again = resumed(world, query)
    again.run(lambda: len({row[:2] for row in again.checkpoint.rows}) == world.total)
    again.run(lambda: world.all_committed)
    world.check(again.checkpoint)


@pytest.mark.parametrize("phase", PHASES)
def test_a_query_that_stood_still_has_everything_once_if_nobody_took_over(world: World, phase: Phase) -> None:
    world.lead()
    query = started(world, sessionTimeoutMs=SHORT)
    world.publish(5)
    query.run_until(phase)
    go_on = threading.Event()
    query.session.thread._loop.call_soon_threadsafe(go_on.wait)
    forgotten(world, query)
    go_on.set()
    world.publish(5)
    query.run(lambda: len({row[:2] for row in query.checkpoint.rows}) == world.total)
    query.run(lambda: world.all_committed)
    world.check(query.checkpoint)


def test_what_another_query_took_over_is_not_read_again(world: World) -> None:
    world.lead()
    query = started(world, sessionTimeoutMs=SHORT)
    world.publish(5)
    query.run_until("logged")
    cut = newest(query.checkpoint)
    query.kill()
    other = world.query(maxOffsetsPerTrigger=1)
    held_all(other, world)
    other.run_until("logged")
    again = resumed(world, query)
    assert again.session.ranges_of(cut) == ()
    run_together(again, other, done=lambda: rows(again, other) == world.total)
    world.check(again.checkpoint, other.checkpoint)


@pytest.mark.parametrize("limit", [None, 1, 3])
def test_the_successor_reads_the_open_cut_in_the_same_parts(world: World, limit: int | None) -> None:
    world.lead()
    query = started(world, sessionTimeoutMs=SHORT)
    world.publish(5)
    query.run_until("sunk")
    query.kill()
    world.publish(7)
    more: dict[str, Any] = {} if limit is None else {"maxOffsetsPerTrigger": limit}
    other = world.query(**more)
    other.run(lambda: len({row[:2] for row in query.checkpoint.rows + other.checkpoint.rows}) == world.total)
    twice = world.check(query.checkpoint, other.checkpoint, duplicates=True)
    newest_batch = query.checkpoint.sink[query.checkpoint.commits]
    assert twice == dict.fromkeys([row[:2] for row in newest_batch], 1)


def test_a_pinned_part_counts_towards_the_limit(world: World) -> None:
    world.lead()
    query = started(world, sessionTimeoutMs=SHORT)
    world.publish({"s.0.0": 5})
    query.run_until("logged")
    query.kill()
    forgotten(world, query)
    world.publish(50)
    other = world.query(maxOffsetsPerTrigger=8)
    held_all(other, world)
    other.run_until("committed")
    assert sum(len(part) for part in other.checkpoint.sink.values()) <= 8


def test_a_smaller_process_gets_only_the_ranges_that_are_still_its_own(world: World) -> None:
    world.lead()
    query = started(world, sessionTimeoutMs=SHORT, slots=2)
    cut = logged_with_all_streams(query, world)
    lost = {*query.session.by_slot(cut.ranges)[1].streams}
    assert 0 < len(lost) < 4
    query.kill()
    again = resumed(world, query, slots=1, sessionTimeoutMs=SHORT)
    session = again.session
    session.thread.call(session.query.begin(cut, finished=False))
    wait_for(lambda: again.held.keys() == set(world.streams))
    assert {part.stream for part in session.ranges_of(cut)} == set(world.streams) - lost
    again.run(lambda: rows(again) == world.total)
    world.check(again.checkpoint)


@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
@pytest.mark.parametrize("phase", ["logged", "sunk", "committed"])
def test_a_batch_that_was_read_in_part_is_not_taken_for_whole(world: World, phase: Phase, late: bool) -> None:
    """The third process finds a checkpoint with all ranges, of which the second read only some."""
    world.lead()
    query = started(world, sessionTimeoutMs=SHORT, slots=2)
    cut = logged_with_all_streams(query, world)
    query.kill()
    second = resumed(world, query, slots=1, sessionTimeoutMs=SHORT)
    second.session.thread.call(second.session.query.begin(cut, finished=False))
    wait_for(lambda: second.held.keys() == set(world.streams))
    assert 0 < len(second.session.ranges_of(cut)) < len(cut.ranges)
    second.run_until(phase)
    second.kill()
    if late:
        forgotten(world, second)
    third = resumed(world, query, slots=1)
    third.run(lambda: len({row[:2] for row in third.checkpoint.rows}) == world.total)
    twice = world.check(third.checkpoint, duplicates=late)
    assert phase != "logged" or not twice


def test_a_query_that_stops_before_it_has_told_of_its_last_batch_gives_nothing_away(world: World) -> None:
    world.lead()
    query = started(world)
    world.publish(5)
    query.run_until("committed")
    query.kill()
    again = resumed(world, query)
    again.session.thread.call(again.session.query.begin(newest(query.checkpoint), finished=False))
    wait_for(lambda: again.held.keys() == set(world.streams))
    again.stop()
    world.publish(1)
    third = resumed(world, query)
    third.run(lambda: rows(third) == world.total)
    world.check(third.checkpoint)


def test_a_cut_that_lost_all_its_streams_does_not_stop_the_query(world: World) -> None:
    world.lead()
    query = started(world, sessionTimeoutMs=SHORT, slots=2)
    of_slot_1 = [stream for stream, held in query.session.query.machine.cuts.held.items() if held.slot == 1]
    world.publish(dict.fromkeys(of_slot_1, 5))
    query.run_until("fixed")
    query.kill()
    again = resumed(world, query, slots=1, sessionTimeoutMs=SHORT)
    again.session.thread.call(again.session.query.begin(newest(query.checkpoint), finished=False))
    wait_for(lambda: again.held.keys() == set(world.streams))
    again.run(lambda: rows(again) == world.total)
    world.check(again.checkpoint)


# ---------------------------------------------------------------- several queries


def test_two_queries_share_the_streams_and_no_message(world: World) -> None:
    world.lead()
    one, two = world.query(), world.query()
    for _ in range(30):
        world.publish(2)
        one.trigger()
        two.trigger()
    run_together(one, two, done=lambda: rows(one, two) == world.total)
    assert rows(one)
    assert rows(two)
    world.check(one.checkpoint, two.checkpoint)


def test_a_stream_is_handed_over_only_after_its_open_cut(world: World) -> None:
    world.lead()
    one = started(world)
    world.publish(5)
    one.run_until("logged")
    two = world.query()
    two.trigger()
    wait_for(lambda: sum(held.revoking for held in dict(one.session.query.machine.cuts.held).values()) == 2)
    for _ in range(10):
        assert not two.trigger()
    assert not two.held
    assert one.trigger()
    one.run(lambda: len(two.held) == 2)
    assert len(one.held) == 2
    world.publish(5)
    run_together(one, two, done=lambda: rows(one, two) == world.total)
    world.check(one.checkpoint, two.checkpoint)
    state = world.state()
    assert all(progress.pinned_end is None for progress in state.streams.values())


@pytest.mark.parametrize("phase", ["logged", "read", "sunk", "committed"])
def test_a_micro_batch_may_take_longer_than_any_timeout_while_others_join(world: World, phase: Phase) -> None:
    """So may the pause behind it: only the next trigger proves that the last micro-batch is done."""
    world.lead(LeaderConfig(revocation_timeout=200))
    one = started(world, sessionTimeoutMs=SHORT)
    world.publish(5)
    one.run_until(phase)
    two = world.query(sessionTimeoutMs=SHORT)
    two.trigger()

    def asked_back_for() -> int:
        view = world._thread.call(world._client.command(SUBSCRIPTION, DescribeGroup()))
        times = [one["since_ms"] for one in view["streams"] if one["state"] == "revoking"]
        return min(times) if len(times) == 2 else 0

    wait_for(lambda: asked_back_for() > SHORT + 10 * 200)
    assert not two.trigger()
    assert not two.held
    world.publish(5)
    one.trigger()
    run_together(one, two, done=lambda: rows(one, two) == world.total and len(two.held) == 2)
    world.check(one.checkpoint, two.checkpoint)


def test_a_query_that_stops_gives_its_streams_away_at_once(world: World) -> None:
    world.lead()
    one, two = world.query(sessionTimeoutMs=300_000), world.query()  # no session ends by time
    held_all(one, world)
    run_together(two, one, done=lambda: len(two.held) == 2)
    one.stop()
    wait_for(lambda: two.held.keys() == set(world.streams))
    world.publish(5)
    two.run(lambda: rows(two) == world.total)
    world.check(two.checkpoint)


def test_streams_that_were_lost_are_not_reported_as_held(world: World) -> None:
    """The loop of a query stands still for longer than its session timeout."""
    world.lead()
    one = started(world, sessionTimeoutMs=SHORT)
    one.run(lambda: world.all_committed)
    two = world.query()
    thread = one.session.thread
    go_on = threading.Event()
    thread._loop.call_soon_threadsafe(go_on.wait)
    two.run(lambda: two.held.keys() == set(world.streams))
    go_on.set()
    run_together(one, two, done=lambda: len(one.held) == 2)
    assert one.reader.reportLatestOffset()["held"] == 2
    # The ends of streams that came back are known a moment later.
    wait_for(lambda: sorted(one.reader.reportLatestOffset()["streams"]) == sorted(one.held))
    world.publish(3)
    run_together(one, two, done=lambda: rows(one, two) == world.total)
    world.check(one.checkpoint, two.checkpoint)


# ---------------------------------------------------------------- leaders that fall


@pytest.mark.parametrize("phase", PHASES)
def test_a_leader_that_falls_during_a_cut_is_followed(world: World, phase: Phase) -> None:
    host = world.lead()
    query = started(world)
    world.publish(5)
    query.run_until(phase)
    host.kill()
    world.lead()
    world.publish(5)
    query.run(lambda: rows(query) == world.total)
    query.run(lambda: world.all_committed)
    world.check(query.checkpoint)


def test_the_last_cut_of_a_quiet_group_is_committed_though_the_leader_fell(world: World) -> None:
    host = world.lead()
    query = started(world)
    world.publish(5)
    query.run_until("committed")
    host.kill()
    assert not query.trigger()
    world.lead()
    query.run(lambda: world.all_committed)


def test_a_clean_stop_leaves_nothing_to_read_again_though_the_leader_fell(world: World) -> None:
    host = world.lead()
    query = started(world)
    world.publish(5)
    query.run_until("committed")
    host.kill()
    assert not query.trigger()
    world.lead()
    query.stop()
    other = world.query()
    other.run(lambda: other.held.keys() == set(world.streams))
    world.publish(2)
    other.run(lambda: rows(query, other) == world.total)
    world.check(query.checkpoint, other.checkpoint)


def test_a_query_may_host_the_leader_and_be_killed(world: World) -> None:
    one = world.query(embeddedLeader=True, sessionTimeoutMs=SHORT)
    held_all(one, world)
    two = world.query(embeddedLeader=True, sessionTimeoutMs=SHORT)
    run_together(two, one, done=lambda: len(two.held) == 2)
    world.publish(5)
    one.run_until("logged")
    one.kill()
    again = resumed(world, one, embeddedLeader=True)
    run_together(two, again, done=lambda: rows(again, two) == world.total)
    world.check(again.checkpoint, two.checkpoint)


def test_a_query_that_runs_once_waits_for_its_leader(world: World) -> None:
    host = world.lead()
    world.publish(5)
    host.kill()
    world.lead()
    once = world.query(once=True)
    once.session.initial()
    once.run_to_the_end()
    assert rows(once) == world.total
    world.check(once.checkpoint)


def test_a_query_that_runs_once_again_reads_all_though_a_leader_must_be_found_first(world: World) -> None:
    """Its former process hosted the leader and was killed with it."""
    world.publish(5)
    first = world.query(embeddedLeader=True)
    first.run_until("logged")
    first.kill()
    world.publish(5)
    once = world.query(first.checkpoint, once=True, embeddedLeader=True)
    once.run_to_the_end()
    assert rows(once) == world.total
    world.check(once.checkpoint)


@pytest.mark.parametrize("slots", [1, 3, 4])
def test_a_query_that_runs_once_reads_all_however_its_slots_come(world: World, slots: int) -> None:
    world.publish(5)
    world.lead()
    checkpoint = Checkpoint()
    for _ in range(3):
        once = world.query(checkpoint, once=True, slots=slots, maxOffsetsPerTrigger=6)
        once.run_to_the_end()
        assert rows(once) == world.total
        once.stop()
        world.publish(5)
