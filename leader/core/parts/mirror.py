"""What stands beside the journal, in the same act: who may commit which stream, and how far each one is.

Who consumes a stream commits it there, under the lease epoch that stands there, and tells the leader
afterwards (`registry/commits.py`). So the leader may know less than is committed: what is moved here never
takes progress back but for an operator's reset, and when a stream changes hands the leader asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from streamlease.leader.core.state.group_state import EXPIRED, PAUSED, GroupState
from streamlease.leader.core.state.progress import StreamProgress
from streamlease.leader.core.state.records import CutClosed, Leased, Record


@dataclass(frozen=True, slots=True)
class Beside:
    """What is to stand there of some streams, in columns: a new term has all of them at once."""

    names: Sequence[str] = ()
    committed: Sequence[int] = ()
    leases: Sequence[str] = ()
    """As `registry/lua/commit.lua` compares them, see `lease_text`."""

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, slots=True)
class MirrorChange:
    """What changes with one commit of the journal."""

    gone: Sequence[str] = ()
    """Fields and streams that are not to stand there any more."""
    fields: Mapping[str, int] = field(default_factory=dict)
    """Fields, and how far streams are that only the leader commits, under leases that stand already."""
    asked: Beside = field(default_factory=Beside)
    """Streams of which the leader must know if more is committed."""
    others: Beside = field(default_factory=Beside)
    whole: bool = False
    """Whether these are all streams, of which most may stand there already."""


@dataclass(slots=True)
class Mirror:
    """Takes down which streams the records of a term move."""

    _whole: bool = True
    """Whether all is to be written, as at the beginning of a term."""
    _closed: dict[str, None] = field(default_factory=dict)
    """MirrorChange by cuts, so by sessions that commit by way of the leader only."""
    _moved: dict[str, None] = field(default_factory=dict)
    _begun: set[str] = field(default_factory=set)
    """Their leases have begun."""

    def applied(self, record: Record, moved: Iterable[str]) -> None:
        """The record moves these streams, or the fields that stand in place of streams."""
        if self._whole:
            return
        found = self._closed if isinstance(record, CutClosed) else self._moved
        for one in moved:
            found[one] = None
        if isinstance(record, Leased):
            self._begun.add(record.stream)

    def lose(self) -> None:
        """What stands there may lack the newest: the next `take` gives all of it."""
        self._whole = True
        self._forget()

    def take(self, durable: GroupState) -> MirrorChange:
        """What changes with the records since the last call."""
        streams, whole = durable.streams, self._whole
        changed = (EXPIRED, PAUSED) if whole else self._moved
        values = {name: _field(durable, name) for name in changed if name in (EXPIRED, PAUSED)}
        gone = [name for name in changed if values.get(name) is None and name not in streams]
        fields = {name: value for name, value in values.items() if value is not None}
        for name in self._closed:
            if name not in self._moved and name in streams:
                fields[name] = streams[name].committed
        moved = list(streams) if whole else [name for name in changed if name in streams]
        asked = moved if whole else [name for name in moved if name in self._begun]
        others = [] if whole else [name for name in moved if name not in self._begun]
        self._whole = False
        self._forget()
        return MirrorChange(gone, fields, _beside(streams, asked), _beside(streams, others), whole)

    def _forget(self) -> None:
        self._closed.clear()
        self._moved.clear()
        self._begun.clear()


def _field(durable: GroupState, name: str) -> int | None:
    if name == EXPIRED:
        return durable.expired_at
    paused = durable.operated.paused
    return None if paused is None else paused.at


def _beside(streams: Mapping[str, StreamProgress], names: Sequence[str]) -> Beside:
    those = [streams[name] for name in names]
    leases = [lease_text(one.lease_epoch, one.owner is not None, one.reset_by) for one in those]
    return Beside(names, [one.committed for one in those], leases)


def lease_text(lease_epoch: int, leased: bool, reset_by: int) -> str:
    """Who may commit a stream, as it stands beside the journal.

    Args:
        lease_epoch: of the stream's newest lease.
        leased: whether that lease stands.
        reset_by: the lease epoch of its newest reset, which may have taken progress back; 0: there was none.
    """
    if leased and not reset_by:
        return str(lease_epoch)
    return f"{lease_epoch}{'' if leased else '-'}{f'/{reset_by}' if reset_by else ''}"
