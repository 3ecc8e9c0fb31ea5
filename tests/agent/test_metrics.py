"""What consumers tell Prometheus is what they did."""

from __future__ import annotations

import asyncio
import gc
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path
from weakref import ref

import pytest
from prometheus_client import REGISTRY

from streamlease import serve_metrics
from streamlease.agent.client import Client
from streamlease.agent.membership import metrics
from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.ids import random_token
from tests.agent.helpers import publish, take, until


def value(name: str, subscription: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"streamlease_{name}", {"subscription": subscription, **labels})


def unique(filter: str) -> str:
    """A subscription that no other test has counted anything for."""
    return f"$shared/{random_token()}/{filter}"


class Held:
    """A consumer of which only the scrape wants to know something."""

    subscription = "$shared/held/#"

    def __init__(self, streams: int, lag: int | None, subscription: str = subscription) -> None:
        self._found = (streams, lag)
        self.subscription = subscription

    def holding(self) -> tuple[int, int | None]:
        return self._found


@pytest.mark.slow
async def test_a_consumer_counts_what_it_reads_hands_out_and_commits(client: Client) -> None:
    sub = unique("a/+")
    await client.create_space("s", ["a/#"], streams=2)
    await publish(client, range(100))
    async with client.publisher() as publisher:
        await publisher.send("a/0/deeper", b"not of the filter")
    async with client.subscribe(sub, start="earliest", max_batch=10) as reader:
        await take(reader, 100)
        await until(lambda: value("consumer_committed_messages_total", sub) in (100, 101))
        await until(lambda: value("consumer_read_messages_total", sub) == 101)
        assert value("consumer_delivered_messages_total", sub) == 100
        assert value("consumer_streams", sub) == 2
        assert value("consumer_granted_streams_total", sub) == 2
        await publish(client, range(5))
        await until(lambda: (value("consumer_lag_messages", sub) or 0) >= 5)
        await take(reader, 5)
        await until(lambda: (value("consumer_ping_seconds_count", sub) or 0) >= 1)
    assert value("consumer_streams", sub) is None
    assert value("consumer_lag_messages", sub) is None


async def test_what_a_newcomer_gets_was_given_back_by_somebody(client: Client, second: Client) -> None:
    sub = unique("a/#")
    await client.create_space("s", ["a/#"], streams=2)
    async with client.subscribe(sub) as one:
        await until(lambda: len(one.streams) == 2)
        async with second.subscribe(sub) as other:
            await until(lambda: (len(one.streams), len(other.streams)) == (1, 1))
            assert value("consumer_streams", sub) == 2
        assert (value("consumer_hand_over_seconds_count", sub) or 0) >= 1


def test_consumers_of_one_group_are_added_up_and_one_unknown_lag_makes_all_unknown() -> None:
    known, unknown = Held(2, 7), Held(3, None)
    sub = known.subscription
    metrics.watch(known)
    try:
        assert (value("consumer_streams", sub), value("consumer_lag_messages", sub)) == (2, 7)
        metrics.watch(unknown)
        assert (value("consumer_streams", sub), value("consumer_lag_messages", sub)) == (5, None)
    finally:
        metrics.forget(known)
        metrics.forget(unknown)
    assert value("consumer_streams", sub) is None


@pytest.mark.slow
def test_a_consumer_that_is_gone_without_closing_is_asked_no_more() -> None:
    """Its event loop ended, say: it must neither be kept alive nor be counted as holding anything."""
    gone = Held(3, 5)
    metrics.watch(gone)
    seen = ref(gone)
    assert value("consumer_streams", gone.subscription) == 3
    del gone
    gc.collect()
    assert seen() is None
    assert value("consumer_streams", Held.subscription) is None


def test_a_meter_times_pings_and_revocations_and_counts_reconnects() -> None:
    sub = unique("#")
    meter = metrics.Meter(sub)
    seen: Callable[[str], float | None] = lambda name: value(name, sub)  # noqa: E731
    meter.answered("b", 10)  # to no ping
    assert seen("consumer_ping_seconds_count") is None
    meter.pinged("b", 1000)
    meter.pinged("b", 2000)  # the first is not answered yet
    meter.answered("b", 2250)
    assert seen("consumer_ping_seconds_sum") == pytest.approx(1.25)
    meter.granted("s.0.0")
    meter.gone("s.0.0", 50)  # without a revocation
    meter.revoking("s.0.0", 100)
    meter.gone("s.0.0", 600)
    assert seen("consumer_hand_over_seconds_sum") == pytest.approx(0.5)
    meter.ended("b", "the leader is silent", again=True)
    meter.ended("b", "unsubscribed", again=False)
    assert value("consumer_reconnects_total", sub, reason="the_leader_is_silent") == 1
    assert value("consumer_reconnects_total", sub, reason="unsubscribed") is None


def read_and_leave(subscription: str, reasons: tuple[str, ...] = ("the leader is silent",)) -> None:
    """Everything that a consumer counts, and its end."""
    consumer, meter = Held(1, 1, subscription), metrics.Meter(subscription)
    metrics.watch(consumer)
    for counter in (metrics.READ, metrics.DELIVERED, metrics.COMMITTED):
        counter.labels(subscription).inc()
    meter.pinged("b", 0)
    meter.answered("b", 5)
    meter.revoking("s", 0)
    meter.gone("s", 5)
    for reason in reasons:
        meter.ended("b", reason, again=True)
    metrics.forget(consumer)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """So many past subscriptions are told of here: each scrape of this process would carry a hundred on."""
    monkeypatch.setattr(metrics, "MOST_PAST", 8)
    return 8


def series() -> dict[str, int]:
    """How many samples each consumer metric has."""
    found = {one.name: len(one.samples) for one in REGISTRY.collect()}
    return {name: count for name, count in found.items() if name.startswith("streamlease_consumer_")}


def test_a_process_that_reads_one_group_after_the_other_does_not_grow_with_them(few: int) -> None:
    living, first = Held(2, 7, unique("living/#")), unique("first/#")
    metrics.watch(living)
    metrics.READ.labels(living.subscription).inc(3)
    read_and_leave(first, ("the leader is silent", "it was fenced"))
    try:
        for _ in range(few):
            read_and_leave(unique("a/#"))
        before = series()
        for _ in range(few):
            read_and_leave(unique("a/#"), ("it was fenced", "the leader is silent"))
        after = series()
        assert value("consumer_read_messages_total", living.subscription) == 3
    finally:
        metrics.forget(living)
    reconnects, streams, lag = (
        f"streamlease_consumer_{name}" for name in ("reconnects", "streams", "lag_messages")
    )
    same = {name: count for name, count in before.items() if name not in (reconnects, streams, lag)}
    assert {name: after[name] for name in same} == same
    more = after[reconnects] - before[reconnects]
    assert more == 2 * few  # a reason more for each: what it counts, and since when
    for reason in ("the_leader_is_silent", "it_was_fenced"):
        assert value("consumer_reconnects_total", first, reason=reason) is None


def test_what_was_read_last_and_what_is_read_again_is_still_told_of(few: int) -> None:
    again, last = unique("again/#"), unique("last/#")
    read_and_leave(again)
    for _ in range(few - 1):
        read_and_leave(unique("a/#"))
    read_and_leave(again)
    for _ in range(few - 2):
        read_and_leave(unique("a/#"))
    read_and_leave(last)
    assert value("consumer_delivered_messages_total", again) == 2
    assert value("consumer_delivered_messages_total", last) == 1
    read_and_leave(unique("a/#"))
    assert value("consumer_delivered_messages_total", again) is None
    assert value("consumer_delivered_messages_total", last) == 1


def test_with_processes_that_share_their_counts_by_files_nothing_is_removed(
    few: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    first = unique("first/#")
    read_and_leave(first)
    for _ in range(few + 1):
        read_and_leave(unique("a/#"))
    assert value("consumer_delivered_messages_total", first) == 1


async def test_metrics_can_be_served_and_the_same_port_twice() -> None:
    port = serve_metrics(0)
    assert serve_metrics(port) == port
    with await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/metrics") as answer:
        assert b"streamlease_consumer_ping_seconds" in answer.read()


def test_a_port_that_is_taken_or_none_is_refused_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidOption, match=f"cannot serve metrics on 127.0.0.1:{port}"):
            serve_metrics(port)
    with pytest.raises(InvalidOption, match="it must be from 0 to 65535"):
        serve_metrics(65536)
