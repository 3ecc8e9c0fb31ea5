"""What a leader decides about cuts: pure functions from its state to a record and to an answer.

A session has one open cut at a time. Its ranges are of streams that the session holds, begin where the
progress is, and end where a former owner's open cut ended, if there was one: so the same cut gives the same
rows, whoever reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streamlease.leader.core.lease import Lease, LeaseState
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.records import CutClosed, CutOpened
from streamlease.protocol.cuts import NO_RANGES, Ranges
from streamlease.protocol.messages import (
    CutFinished,
    CutFixed,
    CutResumed,
    FinishCut,
    FixCut,
    Progress,
    ResumeCut,
)

Leases = Mapping[str, Lease]


def closed(state: GroupState, session: str, finished: int) -> CutClosed | None:
    """The record that closes the session's open cut, if `finished` says that it went through its sink."""
    known = state.sessions.get(session)
    if known is not None and 0 < known.cut <= finished:
        return CutClosed(session=session, cut=known.cut)
    return None


def is_late(state: GroupState, message: FixCut) -> bool:
    """Whether it is a late copy, or comes from a session that forgot what it had asked for."""
    known = state.sessions.get(message.session)
    if known is None or known.cut == message.cut:
        return False
    return bool(known.cut and known.ranges) or message.cut <= known.finished


def opened(state: GroupState, leases: Leases, message: FixCut) -> CutOpened | None:
    """The record that opens the cut asked for; None if it is open already, or nothing of it may be read, or
    only some and the session wants all of it or nothing.

    An open cut that lost all its ranges holds nothing, so its number may be used for other ranges.
    """
    known = state.sessions.get(message.session)
    if known is not None and known.cut == message.cut and known.ranges:
        return None
    ranges = _valid(state, leases, message)
    if message.whole and len(ranges) < len(message.ranges):
        return None
    return CutOpened(session=message.session, cut=message.cut, ranges=ranges) if ranges else None


def fixed(state: GroupState, leases: Leases, term: int, message: FixCut) -> CutFixed:
    """The answer: the ranges that are fixed, unless they are those asked for, and the progress of what was
    left out."""
    known = state.sessions.get(message.session)
    ranges = known.ranges.left if known is not None and known.cut == message.cut else NO_RANGES
    as_asked = ranges == message.ranges
    held = () if as_asked else {*ranges.streams}
    left_out = () if as_asked else [stream for stream in message.ranges.streams if stream not in held]
    return CutFixed(
        group=message.group,
        session=message.session,
        term=term,
        cut=message.cut,
        ranges=None if as_asked and ranges else ranges,
        proposal=message.proposal,
        finished=known.finished if known is not None else 0,
        progress=_progress_of(state, leases, message.session, left_out),
    )


def is_certain(term: int, message: FinishCut) -> bool:
    """Whether the leader of `term` knows the cut, or is told what it was."""
    return message.ranges is not None or message.term == term


def went_through(message: FinishCut) -> tuple[Progress, ...]:
    """What the session attests of the streams of its cut."""
    return tuple(
        Progress(stream=part.stream, lease_epoch=part.lease_epoch, offset=part.end)
        for part in message.ranges or NO_RANGES
    )


def finished(state: GroupState, leases: Leases, term: int, message: FinishCut) -> CutFinished:
    """The answer: up to which cut all is done, and what is committed, unless the session knows it itself."""
    known = state.sessions.get(message.session)
    asked = leases if message.ranges is not None else ()
    return CutFinished(
        group=message.group,
        session=message.session,
        term=term,
        finished=max(message.finished, known.finished if known is not None else 0),
        progress=_progress_of(state, leases, message.session, asked),
    )


def resumed(state: GroupState, term: int, message: ResumeCut) -> CutResumed:
    """The answer: which ranges of the open cut are still the session's."""
    known = state.sessions.get(message.session)
    ranges = known.ranges.left if known is not None and known.cut == message.cut else NO_RANGES
    return CutResumed(group=message.group, session=message.session, term=term, cut=message.cut, ranges=ranges)


def _progress_of(
    state: GroupState, leases: Leases, session: str, streams: Iterable[str]
) -> tuple[Progress, ...]:
    """What is committed of those of `streams` that the session has a lease of."""
    return tuple(
        Progress(stream=stream, lease_epoch=lease.lease_epoch, offset=progress.committed)
        for stream in streams
        if (lease := leases.get(stream)) is not None
        and (progress := state.streams[stream]).session == session
    )


def _valid(state: GroupState, leases: Leases, message: FixCut) -> Ranges:
    """The ranges that may stand in a cut of the session, as they may stand there."""
    streams, session = state.streams, message.session
    readable = (LeaseState.GRANTED, LeaseState.GRANTING)
    bad: set[str] = set()
    until: dict[str, int] = {}
    for stream, lease_epoch, start, asked in zip(*message.ranges.columns, strict=True):
        lease, progress = leases.get(stream), streams.get(stream)
        if (
            lease is None
            or progress is None
            or progress.session != session
            or lease.lease_epoch != lease_epoch
            or start != progress.committed
            or lease.state not in readable
        ):
            bad.add(stream)
            continue
        pinned = progress.pinned_end
        if pinned is not None:
            until[stream] = pinned
        if (asked if pinned is None else pinned) <= start:
            bad.add(stream)
    if not bad and not until:
        return message.ranges
    return Ranges.of(
        part._replace(end=until.get(part.stream, part.end))
        for part in message.ranges
        if part.stream not in bad
    )
