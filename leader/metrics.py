"""What the leaders of a process count, and what each of them says of itself, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import Counter, Histogram

from streamlease.leader.core.state.records import HandedOver, Leased, Record

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
class LedFacts:
    """What only the leader of a group knows, at one moment."""

    subscription: str
    term: int
    moves: int | None
    """None, like `rebalances`, until it has read the journal."""
    rebalances: int | None
    """Plans that took streams from a borrower or gave them to one, in this term."""
    inbox: int
    """Messages that wait for the leader."""
    turn_seconds: float = 0.0
    """For how long it has been at what it does now, be it its recovery; 0: it waits for messages."""
