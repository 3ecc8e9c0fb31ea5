"""What a leader host tells Prometheus.

Series of groups carry the group's name, never a stream's: a host with 500 leaders has a few thousand lines,
however many streams they lead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from streamlease.leader.core.state.records import HandedOver, Leased, Record
from streamlease.protocol.ids import StreamId
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.times import append_times, server_time
from streamlease.streams.redis.connection import AsyncRedis

LOOKED_INTO = 50
"""Of so many groups, those with the largest lag, the age of what waits is read: one entry of each."""

LEASES = Counter(
    "streamlease_leases", "Leases that leaders of this process gave, each with a new lease epoch."
)
HAND_OVER_SECONDS = Histogram(
    "streamlease_hand_over_seconds",
    "From the revocation of a stream, or from a lost owner's last word, to its new owner's first one.",
    ["how"],
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
JOURNAL_BYTES = Counter("streamlease_journal_bytes", "Bytes that leaders of this process wrote to journals.")
JOURNAL_COMMITS = Counter("streamlease_journal_commits", "Group commits of the leaders of this process.")
FENCED = Counter(
    "streamlease_fenced_leaders",
    "Leaders of this process that ended because their term was followed by another.",
)

COMPACTED_ENTRIES = Counter(
    "streamlease_compacted_entries", "Small entries that were merged into large ones by this process."
)
COMPACTED_MESSAGES = Counter(
    "streamlease_compacted_messages", "Messages in the small entries that this process merged."
)
REFUSED_JOBS = Counter(
    "streamlease_refused_jobs", "Jobs in the queue of spawn jobs that are none, and were not run."
)


def count_commit(records: Iterable[Record], size: int) -> None:
    """One group commit of `size` bytes is written."""
    JOURNAL_COMMITS.inc()
    JOURNAL_BYTES.inc(size)
    for record in records:
        if isinstance(record, Leased):
            LEASES.inc()
        elif isinstance(record, HandedOver):
            how = "hand-over" if record.clean else "take-over"
            HAND_OVER_SECONDS.labels(how).observe(record.milliseconds / 1000)


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """One led group at one moment."""

    subscription: str
    term: int
    streams: int
    held: int
    borrowers: int
    moves: int
    rebalances: int
    """Plans that took streams from a borrower or gave them to one, in this term."""
    inbox: int
    """Messages that wait for the leader."""
    lag: int | None = None
    """Messages behind, over all streams; None if that of one is unknown."""
    lag_seconds: float | None = None
    """Age of the oldest message that waits in the stream with the largest lag; None if unknown."""


@dataclass(frozen=True, slots=True)
class KeptFacts:
    """One space with epochs that the host keeps, at one moment."""

    space: str
    publishers: int
    held_back: int
    """Publishers that are ahead of the lower frontier, and wait for others there."""
    waiting: int
    """Messages that were given up, and that are not complete."""
    frontier_seconds: float
    """For how long the lower frontier has been where it is."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """A host at one moment."""

    groups: Sequence[GroupFacts]
    draining: bool
    waiting: int
    """Messages of the host that are not on their way yet."""
    dropped: int
    """Messages that did not parse."""
    kept: Sequence[KeptFacts] = ()


async def with_lag(
    redis: AsyncRedis, led: Sequence[tuple[GroupFacts, Mapping[str, int]]]
) -> list[GroupFacts]:
    """The facts of groups with their lag, from how far each of their streams is consumed.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    ids = {stream: StreamId.parse(stream) for _, committed in led for stream in committed}
    found = await AsyncLog(redis).next_offsets(ids.values())
    nexts = {stream: found.get(id) for stream, id in ids.items()}
    lags = [{stream: _lag(nexts[stream], offset) for stream, offset in part.items()} for _, part in led]
    totals = [None if None in lag.values() else sum(one or 0 for one in lag.values()) for lag in lags]
    behind = sorted((place for place, total in enumerate(totals) if total), key=lambda at: -(totals[at] or 0))
    worst = {at: max(lags[at], key=lambda stream: lags[at][stream] or 0) for at in behind[:LOOKED_INTO]}
    times = await append_times(redis, {ids[stream]: led[at][1][stream] for at, stream in worst.items()})
    now = await server_time(redis)
    seconds: dict[int, float | None] = {at: 0.0 for at, total in enumerate(totals) if total == 0}
    for at, stream in worst.items():
        since = times.get(ids[stream])
        seconds[at] = None if since is None else max(0.0, (now - since) / 1_000_000)
    return [replace(facts, lag=totals[at], lag_seconds=seconds.get(at)) for at, (facts, _) in enumerate(led)]


def _lag(next: int | None, committed: int) -> int | None:
    # After a failover that lost writes the log may end below what was committed: then nobody knows.
    return next - committed if next is not None and next >= committed else None


class _HostCollector(Collector):
    def __init__(self, facts: HostFacts) -> None:
        self._facts = facts

    def collect(self) -> Iterator[Metric]:
        facts = self._facts
        yield GaugeMetricFamily("streamlease_leaders", "Leaders of this host.", value=len(facts.groups))
        yield GaugeMetricFamily("streamlease_draining", "1 while the host drains.", value=int(facts.draining))
        yield GaugeMetricFamily("streamlease_outbox_messages", "Messages not yet sent.", value=facts.waiting)
        yield GaugeMetricFamily(
            "streamlease_dropped_messages",
            "Messages that were no messages, since the start.",
            value=facts.dropped,
        )
        for name, field, meaning in _OF_GROUPS:
            family = GaugeMetricFamily(f"streamlease_group_{name}", meaning, labels=["subscription"])
            for group in facts.groups:
                value = getattr(group, field)
                if value is not None:  # unknown is absent, never 0
                    family.add_metric([group.subscription], value)
            yield family
        for name, field, meaning in _OF_KEPT_SPACES:
            family = GaugeMetricFamily(f"streamlease_epochs_{name}", meaning, labels=["space"])
            for space in facts.kept:
                family.add_metric([space.space], getattr(space, field))
            yield family


_OF_GROUPS = (
    ("term", "term", "Term of the group's leader."),
    ("streams", "streams", "Streams of the group that are not consumed to their end."),
    ("held_streams", "held", "Streams that have an owner."),
    ("borrowers", "borrowers", "Connected borrowers."),
    ("moves", "moves", "How often a stream went from one session to another, in the life of the group."),
    ("rebalances", "rebalances", "Plans that gave or took streams, since the leader's term began."),
    ("mailbox_messages", "inbox", "Messages that wait for the leader."),
    ("lag_messages", "lag", "Messages not consumed yet; absent while unknown."),
    (
        "lag_seconds",
        "lag_seconds",
        "Age of the oldest message that waits in the stream with the largest lag.",
    ),
)


_OF_KEPT_SPACES = (
    ("frontier_seconds", "frontier_seconds", "For how long the lower frontier has been where it is."),
    ("publishers", "publishers", "Publishers that are there."),
    ("held_back_publishers", "held_back", "Publishers that are ahead of the lower frontier: others hold it."),
    ("waiting_messages", "waiting", "Messages that were given up, and whose epochs others hold open."),
)


def exposition(facts: HostFacts) -> bytes:
    """Everything in the text format of Prometheus: the host, its groups, and what this process counts."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_HostCollector(facts))
    return generate_latest(registry) + generate_latest(REGISTRY)
