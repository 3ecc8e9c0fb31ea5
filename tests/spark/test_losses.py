"""A query whose streams lost their ends with a failover: no offset that it has read is given out again."""

from __future__ import annotations

import pytest
import redis

from streamlease.protocol.errors import HistoryTruncated
from streamlease.protocol.ids import StreamId
from streamlease.registry.group_needs import tell_passed
from streamlease.streams.log.keys import stream_log, stream_meta
from tests.spark.refusals import one_line
from tests.spark.test_query import held_all
from tests.spark.test_source_options import truncate
from tests.spark.world import SUBSCRIPTION, Phase, World, wait_for


def lose(world: World, stream: str, end: int) -> None:
    """Take away what the stream has from `end` on, as a failover does to acknowledged messages."""
    id = StreamId.parse(stream)
    with redis.Redis.from_url(world.url) as client:
        late = [entry for entry, _ in client.xrange(stream_log(id)) if int(entry.split(b"-")[0]) >= end]
        assert late
        client.xdel(stream_log(id), *late)
        client.hset(stream_meta(id), "next", end)
    world.begin_anew()


@pytest.mark.slow
def test_what_comes_after_a_loss_is_behind_what_was_read_and_is_read(world: World) -> None:
    world.publish(6)
    world.lead()
    query = world.query()
    query.run(lambda: len(query.checkpoint.rows) == world.total)
    lose(world, "s.0.1", 3)
    wait_for(lambda: world.ends()["s.0.1"] == 6, 60.0)
    world.publish(2)
    query.run(lambda: len(query.checkpoint.rows) == world.total, 60.0)
    world.check(query.checkpoint)
    query.run(lambda: world.all_committed, 60.0)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("phase", ["logged", "read", "sunk"])
@pytest.mark.slow
def test_an_open_cut_of_lost_messages_ends_the_query_or_is_skipped(
    world: World, phase: Phase, restart: bool
) -> None:
    world.publish(3)
    world.lead()
    query = world.query()
    held_all(query, world)
    query.run(lambda: len(query.checkpoint.rows) == world.total)
    world.publish({"s.0.1": 3})
    query.run_until(phase)
    if restart:
        query.kill()
        lose(world, "s.0.1", 3)
        query = world.query(query.checkpoint)
    else:
        lose(world, "s.0.1", 3)
    with pytest.raises(HistoryTruncated, match="acknowledged messages were lost") as refused:
        query.run(lambda: False, 60.0)
    assert "start the query with option 'failOnDataLoss' 'false'" in one_line(refused.value)
    query.kill()
    again = world.query(query.checkpoint, failOnDataLoss=False)
    wait_for(lambda: not again.trigger() and world.ends()["s.0.1"] == 6, 60.0)
    world.publish(2)
    again.run(lambda: world.all_committed, 60.0)
    lost = {("s.0.1", offset) for offset in range(3, 6)} - {row[:2] for row in again.checkpoint.rows}
    assert len(lost) == (0 if phase == "sunk" else 3)
    assert len(again.checkpoint.rows) == world.total - len(lost)


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped meanwhile", "running"])
@pytest.mark.parametrize("fail", [True, False], ids=["fails", "warns"])
@pytest.mark.slow
def test_what_retention_took_before_it_was_in_a_cut_is_told(
    world: World, fail: bool, stopped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world.publish(3)
    world.lead()
    query = world.query(failOnDataLoss=fail)
    query.run(lambda: world.all_committed)
    if stopped:
        query.stop()
    world.publish({"s.0.1": 6})
    truncate(world, "s.0.1", 7)
    world._thread.call(tell_passed(world._client.redis, [SUBSCRIPTION.id]))
    wait_for(lambda: world.committed["s.0.1"] == 7)
    if stopped:
        query = world.query(query.checkpoint, failOnDataLoss=fail)
    if fail:
        with pytest.raises(HistoryTruncated, match="no longer has offset 3; the oldest left is 7") as told:
            query.run(lambda: False)
        assert "so does the query when it is started again" in one_line(told.value)
        query.kill()
        query = world.query(query.checkpoint)
    query.run(lambda: world.all_committed)
    assert fail or "the oldest left is 7" in caplog.text
    gone = {("s.0.1", offset) for offset in range(3, 7)}
    assert {row[:2] for row in query.checkpoint.rows} == {
        (s, o) for s in world.streams for o in range(world.published[s])
    } - gone
    assert len(query.checkpoint.rows) == world.total - 4


@pytest.mark.parametrize("led", [True, False], ids=["then the leader ends", "meanwhile nobody leads"])
@pytest.mark.slow
def test_what_a_leader_passed_over_is_told_by_the_next_one(world: World, led: bool) -> None:
    world.publish(3)
    host = world.lead()
    query = world.query()
    query.run(lambda: world.all_committed)
    if not led:
        host.kill()
    world.publish({"s.0.1": 6})
    truncate(world, "s.0.1", 7)
    if led:
        world._thread.call(tell_passed(world._client.redis, [SUBSCRIPTION.id]))
        wait_for(lambda: world.committed["s.0.1"] == 7)
        host.kill()
    world.lead()
    with pytest.raises(HistoryTruncated, match="no longer has offset 3; the oldest left is 7"):
        query.run(lambda: world.all_committed)
    query.kill()
    query = world.query(query.checkpoint)
    query.run(lambda: world.all_committed)
    assert len(query.checkpoint.rows) == world.total - 4
