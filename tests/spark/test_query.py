"""Cuts of a query against a real Redis and a real leader."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from prometheus_client import REGISTRY
from redis import Redis

from streamlease.admin.facts.group import describe
from streamlease.agent.client import connect
from streamlease.protocol.errors import Fenced, StoreUnavailable, UnknownSpace
from streamlease.spark.core import outage
from streamlease.spark.core.checkpoint import CutOffset
from streamlease.spark.core.limits import Limits
from tests.servers import RedisServer
from tests.spark.refusals import one_line
from tests.spark.world import SUBSCRIPTION, Checkpoint, Query, World, wait_for, within


def ranges(offset: CutOffset) -> dict[str, tuple[int, int]]:
    return {part.stream: (part.start, part.end) for part in offset.ranges}


def newest(checkpoint: Checkpoint) -> CutOffset:
    return CutOffset.from_json(json.loads(checkpoint.offsets[-1]), SUBSCRIPTION.id)


def held_all(query: Query, world: World) -> None:
    """Let the query get all streams; nothing of them is in a cut yet."""
    session = query.session
    session.thread.call(session.query.begin(session.initial(), finished=True))
    wait_for(lambda: query.held.keys() == set(world.streams))


# ---------------------------------------------------------------- one process


def test_the_first_cut_holds_what_is_there(world: World) -> None:
    world.publish(5)
    world.lead()
    query = world.query()
    query.run(lambda: len(query.checkpoint.rows) == world.total)
    world.check(query.checkpoint)


def test_the_beginning_is_the_same_each_time_it_is_asked_for(world: World) -> None:
    query = world.query()
    assert query.reader.initialOffset() == query.reader.initialOffset()
    assert query.session.initial().cut == 0
    assert world.query().reader.initialOffset() != query.reader.initialOffset()


def test_a_cut_asked_for_again_is_the_same_though_more_has_come(world: World) -> None:
    world.lead()
    query = world.query()
    held_all(query, world)
    world.publish(5)
    start = query.session.initial()
    first = start
    for _ in within(10):
        first = query.session.next_cut(start, Limits())
        if first != start:
            break
    world.publish(5)
    assert query.session.next_cut(start, Limits()) == first
    assert query.session.ranges_of(first) == first.ranges
    following = query.session.next_cut(first, Limits())
    assert following.cut == 2
    assert all(part.start == ranges(first).get(part.stream, (0, 0))[1] for part in following.ranges)


def test_being_asked_for_more_commits_what_was_done(world: World) -> None:
    world.publish(5)
    world.lead()
    query = world.query()
    query.run(lambda: len(query.checkpoint.rows) == world.total)
    assert not query.trigger()
    wait_for(lambda: world.all_committed)
    assert all(not cuts.cut for cuts in world.state().sessions.root.values())


def test_nothing_is_committed_before_the_sink_has_it(world: World) -> None:
    world.publish(5)
    world.lead()
    query = world.query()
    query.run_until("sunk")
    assert set(world.committed.values()) == {0}


def test_a_limit_is_kept_and_no_stream_starves(world: World) -> None:
    world.publish({"s.0.0": 100, "s.0.1": 1, "s.0.2": 1, "s.0.3": 1})
    world.lead()
    query = world.query(maxOffsetsPerTrigger=7)
    held_all(query, world)
    query.run(lambda: len(query.checkpoint.rows) == world.total)
    sizes = [len(rows) for rows in query.checkpoint.sink.values()]
    assert max(sizes) <= 7
    assert {row.stream for row in query.checkpoint.rows[:14]} == set(world.streams)
    world.check(query.checkpoint)


def test_what_comes_later_is_not_available_now(world: World) -> None:
    world.publish(5)
    world.lead()
    query = world.query(once=True, maxOffsetsPerTrigger=8)
    query.run_until("committed")
    world.publish(5)
    query.run_to_the_end()
    assert sorted(row[:2] for row in query.checkpoint.rows) == [
        (s, o) for s in world.streams for o in range(5)
    ]


def test_the_report_tells_lag_and_held_streams(world: World) -> None:
    world.publish(5)
    world.lead()
    query = world.query()
    held_all(query, world)
    query.run_until("sunk")
    wait_for(lambda: query.reader.reportLatestOffset()["lag"] == 20)
    report = query.reader.reportLatestOffset()
    assert report["held"] == 4
    assert report["streams"] == dict.fromkeys(world.streams, 5)
    query.run(lambda: query.reader.reportLatestOffset()["lag"] == 0)
    json.dumps(report)


def test_who_describes_the_group_sees_what_the_query_is_called(world: World) -> None:
    async def seen() -> list[tuple[str, str | None]]:
        async with connect(world.url) as client:
            return [(one.name, one.query) for one in (await describe(client, SUBSCRIPTION)).borrowers]

    world.publish(1)
    world.lead()
    named, plain = world.query(queryName="delays of the day"), world.query()
    for query in (named, plain):
        held = query.session
        held.thread.call(held.query.begin(held.initial(), finished=True))
    wait_for(lambda: len(asyncio.run(seen())) == 4)
    told = {name.partition("/")[0]: query for name, query in asyncio.run(seen())}
    assert sorted(told.values(), key=str) == [None, "delays of the day"]


@pytest.mark.slow
def test_without_a_leader_nothing_is_known_of_what_is_held_and_the_report_says_why(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "TELL_SECONDS", 0.1)
    world.publish(5)
    host = world.lead()
    query = world.query(sessionTimeoutMs=60_000)
    assert query.reader.reportLatestOffset() == {
        "said": "has no leader yet", "streams": {}, "held": None, "lag": None, "rebalances": 0, "error": None
    }  # fmt: skip
    query.run(lambda: query.reader.reportLatestOffset()["lag"] == 0 and world.all_committed)
    assert query.reader.reportLatestOffset()["held"] == 4
    host.kill()
    world.publish(5)
    wait_for(lambda: query.reader.reportLatestOffset()["held"] is None)
    wait_for(lambda: "no leader host is there" in (query.reader.reportLatestOffset()["error"] or ""))
    report = query.reader.reportLatestOffset()
    assert report["lag"] is None
    assert report["error"].startswith(
        f"no leader of {SUBSCRIPTION} answers this query, so it reads nothing new"
    )
    assert query.session.query.loop.holding() == (None, None)
    wait_for(lambda: "reads nothing new: no leader host is there" in caplog.text)
    world.lead()
    wait_for(lambda: query.reader.reportLatestOffset()["held"] == 4)
    assert query.reader.reportLatestOffset()["error"] is None
    query.run(lambda: len(query.checkpoint.rows) == world.total)
    world.check(query.checkpoint)


@pytest.mark.slow
def test_a_query_goes_on_at_maxmemory_and_shows_why_if_its_leader_is_lost(
    make_redis_server: Callable[..., RedisServer],
) -> None:
    server = make_redis_server()
    world = World(server.url)
    try:
        world.publish(5)
        query = world.query(embeddedLeader=True)
        query.run(lambda: world.all_committed and query.reader.reportLatestOffset()["lag"] == 0)
        with Redis.from_url(server.url) as redis:
            redis.config_set("maxmemory", 1)
            assert not query.trigger()
            assert query.reader.reportLatestOffset()["held"] == 4
            redis.config_set("maxmemory", 0)
            redis.config_set("min-replicas-to-write", 1)  # now all that is written is refused
            wait_for(lambda: query.reader.reportLatestOffset()["held"] is None)
            wait_for(lambda: "NOREPLICAS" in (query.reader.reportLatestOffset()["error"] or ""))
            assert query.reader.reportLatestOffset()["lag"] is None
            redis.config_set("min-replicas-to-write", 0)
        world.publish(5)
        query.run(lambda: len(query.checkpoint.rows) == world.total)
        assert query.reader.reportLatestOffset()["held"] == 4
        world.check(query.checkpoint)
    finally:
        world.close()


def test_the_driver_counts_for_prometheus_what_its_tasks_read_and_its_cuts_commit(world: World) -> None:
    def counted(name: str) -> float:
        labels = {"subscription": str(SUBSCRIPTION)}
        return REGISTRY.get_sample_value(f"streamlease_consumer_{name}_messages_total", labels) or 0.0

    before = counted("read"), counted("committed")
    world.publish(5)
    world.lead()
    query = world.query()
    held_all(query, world)
    query.run(lambda: query.session.query.loop.holding() == (4, 0))
    assert counted("committed") - before[1] == 20
    wait_for(lambda: counted("read") - before[0] == 20)


def test_a_lag_that_is_not_known_yet_is_null(world: World) -> None:
    world.publish(5)
    world.lead()
    query = world.query()
    held_all(query, world)
    session = query.session
    assert session.query.loop.borrowing is not None
    ends = session.query.loop.borrowing._tails._tails._next  # type: ignore[attr-defined]  # as before a poll
    ends.update(dict.fromkeys(ends))
    report = session.report()
    assert report["lag"] is None or report["lag"] == 20


# ---------------------------------------------------------------- errors


def test_an_unreachable_redis_is_an_error_at_once() -> None:
    from streamlease.spark.options import SourceOptions
    from streamlease.spark.source import StreamReader

    options = {"redis": "redis://127.0.0.1:1", "subscribe": str(SUBSCRIPTION)}
    reader = StreamReader(SourceOptions.parse(options))
    for call in (
        lambda: reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit()),
        reader.prepareForTriggerAvailableNow,
    ):
        with pytest.raises(StoreUnavailable) as refused:
            call()
        one_line(refused.value)
    reader.stop()


@pytest.mark.parametrize("again", [1, 2])
def test_an_unknown_space_is_an_error_at_once_and_again(world: World, again: int) -> None:
    query = world.query(subscribe="$shared/g/elsewhere/#")
    for _ in range(again):
        with pytest.raises(UnknownSpace) as refused:
            query.trigger()
        one_line(refused.value)


def test_a_stop_without_a_start_and_a_second_stop_are_nothing(world: World) -> None:
    query = world.query()
    with Redis.from_url(world.url) as client:
        before = sorted(client.scan_iter())
        query.stop()
        query.stop()
        assert sorted(client.scan_iter()) == before, "nobody hears of it"


def test_an_older_copy_of_the_checkpoint_is_fenced(world: World) -> None:
    world.publish(2)
    world.lead()
    query = world.query(maxOffsetsPerTrigger=1)
    query.run(lambda: query.checkpoint.commits == 2)
    copy = query.checkpoint.copy()
    query.run(lambda: query.checkpoint.commits == 5)
    query.kill()
    late = world.query(copy)
    with pytest.raises(Fenced, match="checkpoint is older than its progress") as refused:
        late.run(lambda: False, 5.0)
    one_line(refused.value)


def test_of_two_processes_of_one_query_the_older_is_fenced(world: World) -> None:
    world.publish(5)
    world.lead()
    older = world.query()
    older.run(lambda: len(older.checkpoint.rows) == world.total)
    newer = world.query(older.checkpoint.copy())
    newer.trigger()
    with pytest.raises(Fenced, match="another process runs") as refused:
        older.run(lambda: False, 5.0)
    one_line(refused.value)
    world.publish(5)
    newer.run(lambda: len(newer.checkpoint.rows) == world.total)
    world.check(newer.checkpoint)
