"""What a host tells Prometheus is what is so; what is unknown is absent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from streamlease.leader.core.state.records import HandedOver, Leased
from streamlease.leader.metrics import GroupFacts, HostFacts, count_commit, exposition, with_lag
from streamlease.streams.publish.publisher import Publisher
from streamlease.streams.redis.connection import AsyncRedis, connect
from streamlease.streams.spaces.spaces import SpaceStore

SUB = "$shared/g/a/#"


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(redis_url)
    await SpaceStore(client).create("a", ["a/#"], streams=2)
    yield client
    await client.aclose()


GROUP = GroupFacts(SUB, term=3, streams=2, held=1, borrowers=1, moves=4, rebalances=2, inbox=0)


def samples(facts: HostFacts) -> dict[tuple[str, str], float]:
    """By name and subscription."""
    families = text_string_to_metric_families(exposition(facts).decode())
    return {
        (one.name, one.labels.get("subscription", "")): one.value
        for family in families
        for one in family.samples
    }


def test_groups_and_the_host_are_told_and_the_unknown_is_left_out() -> None:
    seen = samples(HostFacts([replace(GROUP, lag=7)], True, 2, 1))
    assert seen["streamlease_leaders", ""] == 1
    assert (seen["streamlease_draining", ""], seen["streamlease_outbox_messages", ""]) == (1, 2)
    # Consumers of earlier tests told of themselves in the same registry.
    told = {
        name: value
        for (name, subscription), value in seen.items()
        if subscription == SUB and name.startswith("streamlease_group_")
    }
    assert told == {
        "streamlease_group_term": 3,
        "streamlease_group_streams": 2,
        "streamlease_group_held_streams": 1,
        "streamlease_group_borrowers": 1,
        "streamlease_group_moves": 4,
        "streamlease_group_rebalances": 2,
        "streamlease_group_mailbox_messages": 0,
        "streamlease_group_lag_messages": 7,
    }


def test_a_commit_counts_what_it_holds() -> None:
    def value(name: str, **labels: str) -> float:
        return REGISTRY.get_sample_value(name, labels) or 0.0

    before = [
        value("streamlease_leases_total"),
        value("streamlease_journal_bytes_total"),
        value("streamlease_hand_over_seconds_sum", how="take-over"),
    ]
    count_commit(
        [
            Leased(stream="a.0.0", lease_epoch=1, name="n", session="s"),
            HandedOver(stream="a.0.0", milliseconds=1500, clean=False),
        ],
        120,
    )
    after = [
        value("streamlease_leases_total"),
        value("streamlease_journal_bytes_total"),
        value("streamlease_hand_over_seconds_sum", how="take-over"),
    ]
    assert [now - then for now, then in zip(after, before, strict=True)] == pytest.approx([1, 120, 1.5])


async def test_lags_are_read_where_the_streams_are(redis: AsyncRedis) -> None:
    written = REGISTRY.get_sample_value("streamlease_published_messages_total") or 0.0
    async with Publisher(redis) as publisher:
        placed = [await publisher.send(f"a/{number}", b"x") for number in range(8)]
    assert REGISTRY.get_sample_value("streamlease_published_messages_total") == written + 8
    streams = {str(stream) for stream, _ in placed}
    zero = {f"a.0.{shard}": 0 for shard in range(2)}
    ends = {name: 1 + max(offset for stream, offset in placed if str(stream) == name) for name in streams}
    led = [(GROUP, zero), (GROUP, {**zero, **ends}), (GROUP, {"a.0.0": 99}), (GROUP, {"none.0.0": 0})]
    found = await with_lag(redis, led)
    assert [facts.lag for facts in found] == [8, 0, None, None]
    assert found[0].lag_seconds is not None
    assert [facts.lag_seconds for facts in found[1:]] == [0.0, None, None]
