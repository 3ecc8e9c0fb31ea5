"""What the judge demands of generations, which are sealed and followed while all else goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.judge import Judge


def granted(judge: Judge, stream: str) -> None:
    """[6] A stream is leased: all that it follows is consumed."""
    for former in judge.store.order.get(stream, ()):
        known = judge.truth.streams.get(former)
        over = known is None or known.finished or _is_at_end(judge, former, known.committed)
        judge.demand(over, stream, "is granted before", former, "is finished")
        judge.sometimes["a stream is granted after those that it follows"] += 1


def _is_at_end(judge: Judge, stream: str, committed: int) -> bool:
    """Whether nothing is left of a sealed stream: after a reset it is finished again, in the same commit."""
    return stream in judge.store.sealed and committed >= judge.store.streams[stream]


def finished(judge: Judge, streams: tuple[str, ...]) -> None:
    """[5] Streams count as consumed to their end: they are."""
    for stream in streams:
        space, at = judge.store, judge.truth.streams[stream].committed
        if stream in space.streams:
            judge.demand(stream in space.sealed, stream, "is not sealed, but finished")
            judge.demand(
                at >= space.streams[stream], stream, "is finished at", at, "of", space.streams[stream]
            )
        judge.sometimes["a stream is finished"] += 1


def forgotten(judge: Judge, streams: tuple[str, ...]) -> None:
    """[5] Only what is not there any more is forgotten."""
    for stream in streams:
        judge.demand(stream not in judge.store.streams, stream, "is forgotten, but there")


def delivered(judge: Judge, session: str, stream: str, lease_epoch: int) -> None:
    """[6] Messages come out under the present lease: all of what they follow came out before."""
    lease = judge.truth.streams.get(stream)
    if lease is None or lease.owner is None or lease.lease_epoch != lease_epoch:
        return
    for former in judge.store.order.get(stream, ()):
        end, passed = judge.store.streams.get(former, 0), judge.passed.get(former, 0)
        judge.demand(
            passed >= end, session, "reads", stream, "before", former, "is consumed:", passed, "of", end
        )
