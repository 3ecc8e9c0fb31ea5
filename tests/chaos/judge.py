"""Judges what a run under chaos delivered: a pure function of what every process said and of the log.

For one group, with all times of one machine's clock:

* nothing lost: deliveries of a stream never leave a hole, and in the end reach its end;
* order: whatever is delivered for the first time comes in the order of offsets, with the log's content;
* nothing below a commit again: once a commit was confirmed, no later delivery begins below it, except to a
  process that a fault had cut off for as long as its session lasts, and only of what it had fetched before;
  it can commit nothing then, and if it does, that is wrong;
* duplicates above the commit only where a fault explains them: the process that had them was killed, or it or
  Redis was away for as long as its session lasts, or an operator released the stream. A process that was away
  may also be the first to deliver what it had fetched before, when the stream is somebody else's already.

A process or Redis that was *seen* to stand still by itself was away as by a fault, for just that time.

For the log: every acknowledged message stands there once, no message twice, those of a key in order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

SLACK_SECONDS = 1.5
"""A session counts from the last ping, which may be this much older than the fault. On a machine so busy that
processes stand still without a fault, more is needed: then a shorter one explains a repetition."""

BEFORE_SECONDS = 1.0
"""A fault that ended so shortly before a delivery may still show: the process works off what came late."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One batch that a consumer was handed."""

    at: float
    group: str
    consumer: str
    stream: str
    start: int
    end: int
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit that a consumer got confirmed."""

    at: float
    group: str
    consumer: str
    stream: str
    end: int


Event = TypeVar("Event", Delivery, Commit)


@dataclass(frozen=True, slots=True)
class Outage:
    """A time in which a fault kept `target` (a process, ``redis``, or a released stream) from working."""

    target: str
    began: float
    ended: float
    final: bool = False
    """The process never came back, or the stream was taken by force."""
    by_itself: bool = False
    """No fault was ordered: the process, or Redis, was seen to stand still on a busy machine."""


@dataclass(slots=True)
class Facts:
    """All that was observed."""

    deliveries: list[Delivery] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    log: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Stream -> payloads by offset."""
    session_seconds: float = 4.0
    slack_seconds: float = SLACK_SECONDS


@dataclass(slots=True)
class Verdict:
    """What the judge found. `wrong` is empty after a good run."""

    wrong: list[str] = field(default_factory=list)
    messages: int = 0
    acknowledged: int = 0
    delivered: int = 0
    again: int = 0
    """Messages delivered again after a fault that explains it, above the last commit."""
    stale: int = 0
    """Of these: handed to a process that had been cut off, from what it had fetched before."""
    commits: int = 0
    streams: int = 0
    still: list[float] = field(default_factory=list)
    """Seconds of each time that a process or Redis stood still by itself."""


def judge(facts: Facts) -> Verdict:
    """The verdict on one run."""
    verdict = Verdict(
        messages=sum(map(len, facts.log.values())),
        acknowledged=len(facts.acknowledged),
        delivered=sum(d.end - d.start for d in facts.deliveries),
        commits=len(facts.commits),
        streams=len(facts.log),
        still=[outage.ended - outage.began for outage in facts.outages if _is_by_itself(outage, facts)],
    )
    _judge_log(facts, verdict)
    for group in sorted({delivery.group for delivery in facts.deliveries}):
        for stream in sorted(facts.log):
            _judge_stream(group, stream, facts, verdict)
    return verdict


def _judge_log(facts: Facts, verdict: Verdict) -> None:
    counts = Counter(id for ids in facts.log.values() for id in ids)
    verdict.wrong += [f"message {id} stands {n} times in the log" for id, n in counts.items() if n > 1]
    verdict.wrong += [
        f"message {id} was acknowledged and is not in the log"
        for id in facts.acknowledged
        if id not in counts
    ]
    for stream, ids in facts.log.items():
        newest: dict[str, int] = {}
        for id in ids:
            key, _, number = id.rpartition(":")
            if int(number) <= newest.get(key, -1):
                verdict.wrong.append(f"in {stream} message {id} stands behind {key}:{newest[key]}")
            newest[key] = int(number)


def _judge_stream(group: str, stream: str, facts: Facts, verdict: Verdict) -> None:
    content = facts.log[stream]
    deliveries = _of(facts.deliveries, group, stream)
    commits = _of(facts.commits, group, stream)
    times = [commit.at for commit in commits]
    committed = [0]
    for commit in commits:
        committed.append(max(committed[-1], commit.end))
    high = 0
    owners: list[tuple[int, Delivery]] = []
    """(end, delivery) of what was delivered first, by offset."""
    for delivery in deliveries:
        what = f"{group} {stream}[{delivery.start},{delivery.end}) to {delivery.consumer}"
        if list(delivery.ids) != list(content[delivery.start : delivery.end]):
            verdict.wrong.append(f"{what} has other messages than the log")
        if delivery.start > high:
            verdict.wrong.append(f"{what} came while {high} to {delivery.start} was not delivered yet")
        if delivery.start < high:
            below = committed[bisect_right(times, delivery.at)]
            done = _is_confirmed(delivery, deliveries, commits)
            _judge_again(what, delivery, min(high, delivery.end), below, done, owners, facts, verdict)
        if delivery.end > high:
            high = delivery.end
            owners.append((high, delivery))
    if high < len(content):
        verdict.wrong.append(f"{group} {stream}: {high} to {len(content)} was never delivered")
    if committed[-1] > high:
        verdict.wrong.append(f"{group} {stream}: committed up to {committed[-1]}, delivered up to {high}")


def _judge_again(
    what: str,
    delivery: Delivery,
    end: int,
    below: int,
    done: bool,
    owners: list[tuple[int, Delivery]],
    facts: Facts,
    verdict: Verdict,
) -> None:
    """A delivery of which [start, end) had been delivered before, when the commit stood at `below`.

    `done` says whether the delivery's own commit was confirmed.
    """
    first = next(former for until, former in owners if until > delivery.start)
    session = facts.session_seconds
    was_cut = _away({delivery.consumer, "redis"}, delivery.at - 3 * session, delivery.at, facts.outages)
    if delivery.start < below:
        if was_cut >= session - facts.slack_seconds:
            verdict.stale += end - delivery.start
            if done:
                verdict.wrong.append(
                    f"{what} came when {below} was committed, and yet its commit was confirmed"
                )
            return
        verdict.wrong.append(
            f"{what} came {delivery.at - first.at:.2f} s after it had first come to {first.consumer}, "
            f"though {below} was committed"
        )
        return
    targets = {first.consumer, "redis", f"{delivery.group} {delivery.stream}"}
    away = _away(targets, first.at - BEFORE_SECONDS, delivery.at, facts.outages)
    had_been = _away({first.consumer}, first.at - 3 * session, first.at, facts.outages)
    if max(away, was_cut, had_been) >= session - facts.slack_seconds:
        verdict.again += end - delivery.start
        return
    verdict.wrong.append(
        f"{what} came again {delivery.at - first.at:.2f} s after it had come to {first.consumer} "
        f"(commit at {below}), and no fault explains it: away for {away:.2f} s"
    )


def _is_by_itself(outage: Outage, facts: Facts) -> bool:
    """Whether no fault was ordered for its target at that time."""
    return outage.by_itself and not any(
        o.target == outage.target and not o.by_itself and o.began < outage.ended and outage.began < o.ended
        for o in facts.outages
    )


def _is_confirmed(delivery: Delivery, deliveries: list[Delivery], commits: list[Commit]) -> bool:
    """Whether its consumer committed all of `delivery` before it got more of the stream."""
    mine = (d.at for d in deliveries if d.consumer == delivery.consumer and d.at > delivery.at)
    until = next(mine, float("inf"))
    return any(
        c.consumer == delivery.consumer and c.end == delivery.end and delivery.at <= c.at <= until
        for c in commits
    )


def _of(events: Iterable[Event], group: str, stream: str) -> list[Event]:
    return sorted((e for e in events if e.group == group and e.stream == stream), key=lambda e: e.at)


def _away(targets: set[str], begin: float, end: float, outages: Iterable[Outage]) -> float:
    """For how many seconds of [begin, end] one of the targets was away; infinite if for good."""
    total, reached = 0.0, begin
    for outage in sorted(outages, key=lambda outage: outage.began):
        if outage.target not in targets or outage.ended + BEFORE_SECONDS < begin or outage.began > end:
            continue
        if outage.final:
            return float("inf")
        total += max(0.0, min(outage.ended, end) - max(outage.began, reached))
        reached = max(reached, min(outage.ended, end))
    return total
