"""After a loss: what borrowers, programs and queries have seen and the journal has not. Pure functions.

A Redis that was restarted, or a replica that was promoted, may lack the newest writes although they were
acknowledged: leases, commits and cuts of which the next leader cannot know. It knows *that* something may be
missing, because the lineage of the data has changed (`streamlease.registry.leadership`), and then

* it issues lease epochs above the term that began the lineage. Such a term is a leap away from all before
  it, so no lease epoch of the lost tail is issued again, whether anybody remembers it or not;
* it believes those who come back: everybody who connects attests, of each stream that it has had, the newest
  lease epoch, and the committed offset with its lease epoch. The highest wins, provided that the
  journal cannot know better: the lease was issued in the lost tail, or is the newest that the journal has of
  the stream. What is older is refused: an operator may have reset the stream since;
* it makes its first plan a little later than else, so that those who know more come before others get
  the streams;
* a query that had a cut open names its ranges: they are fixed again, unless the stream has been
  given to others since.

*Not promised*: what nobody who comes back has seen. The group goes on from what the journal has: messages
whose commit was lost are delivered again, none is skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streamlease.leader.core.lease import Lease, LeaseState
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.records import Attested, CutOpened
from streamlease.protocol.cuts import Ranges
from streamlease.protocol.messages import Progress, ResumeCut

DELAY = 1500
"""How much later (ms) the first plan in a new lineage is made."""


def begins(state: GroupState, term: int) -> bool:
    """Whether the data have another lineage since `term` began, and there is something to be lost."""
    return state.lineage_term == term and any(one.lost_from is not None for one in state.streams.values())


def news(state: GroupState, attested: Iterable[Progress]) -> Attested | None:
    """The record of what `attested` says beyond the journal; None if the journal knows all of it.

    Streams that the group does not have are left out.
    """
    found: dict[str, tuple[int, int]] = {}
    for entry in attested:
        progress = state.streams.get(entry.stream)
        if progress is None or not _is_lost(state, entry.stream, entry.lease_epoch):
            continue
        lease_epoch, offset = found.get(entry.stream, (progress.lease_epoch, progress.committed))
        if entry.lease_epoch > lease_epoch or entry.offset > offset:
            found[entry.stream] = (max(lease_epoch, entry.lease_epoch), max(offset, entry.offset))
    return Attested(streams=found) if found else None


def _is_lost(state: GroupState, stream: str, lease_epoch: int) -> bool:
    """Whether that lease was, or may have been, the newest one in a tail that is lost."""
    progress = state.streams[stream]
    if progress.lost_from is None:
        return False
    return progress.lost_from <= lease_epoch <= state.lineage_term or lease_epoch > progress.lease_epoch


def reopened(state: GroupState, leases: Mapping[str, Lease], message: ResumeCut) -> CutOpened | None:
    """The record that opens again what a query's checkpoint says of a cut that the journal has lost.

    Only streams that the session holds now, that nobody else is known to have had since, and of which the
    cut is the next part.
    """
    known = state.sessions.get(message.session)
    if known is not None and (known.cut or known.finished >= message.cut):
        return None
    ranges = Ranges.of(
        part._replace(lease_epoch=lease.lease_epoch)
        for part in message.ranges
        if (lease := leases.get(part.stream)) is not None
        and lease.state in (LeaseState.GRANTING, LeaseState.GRANTED)
        and (progress := state.streams[part.stream]).session == message.session
        and progress.follows == part.lease_epoch
        and part.start == progress.committed < part.end
        and progress.pinned_end in (None, part.end)
        and progress.lost_from is not None
        and progress.lost_from <= part.lease_epoch <= state.lineage_term
    )
    return CutOpened(session=message.session, cut=message.cut, ranges=ranges) if ranges else None
