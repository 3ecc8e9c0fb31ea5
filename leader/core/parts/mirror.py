"""What stands beside the journal, in the same act: who may commit which stream, and how far each one is.

Who consumes a stream commits it there, under the lease epoch that stands there, and tells the leader
afterwards (`registry/commits.py`). So the leader may know less than is committed: what is moved here never
takes progress back but for an operator's reset, and when a stream changes hands the leader asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from streamlease.leader.core.state.group_state import EXPIRED, PAUSED, GroupState
from streamlease.leader.core.state.records import CutClosed, Leased, Record


@dataclass(frozen=True, slots=True)
class StreamMoved:
    """What is to be known of one stream."""

    committed: int
    lease_epoch: int
    leased: bool
    """Whether the lease stands."""
    reset_by: int
    """The lease epoch of its newest reset, which may have taken progress back; 0: there was none."""
    asked: bool
    """Whether the leader must know if more is committed."""


@dataclass(frozen=True, slots=True)
class MirrorChange:
    """What changes with one commit of the journal."""

    gone: tuple[str, ...] = ()
    """Fields and streams that are not to stand there any more."""
    fields: Mapping[str, int] = field(default_factory=dict)
    """Fields, and how far streams are that only the leader commits, under leases that stand already."""
    streams: Mapping[str, StreamMoved] = field(default_factory=dict)


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
        whole, streams = self._whole, durable.streams
        names: Iterable[str] = (*streams, EXPIRED, PAUSED) if whole else self._moved
        gone: list[str] = []
        fields: dict[str, int] = {}
        moved: dict[str, StreamMoved] = {}
        for name in names:
            if name in (EXPIRED, PAUSED):
                value = _field(durable, name)
                if value is None:
                    gone.append(name)
                else:
                    fields[name] = value
            elif (one := streams.get(name)) is None:
                gone.append(name)
            else:
                asked = whole or name in self._begun
                moved[name] = StreamMoved(
                    one.committed, one.lease_epoch, one.owner is not None, one.reset_by, asked
                )
        for name in self._closed:
            if name not in moved and (one := streams.get(name)) is not None:
                fields[name] = one.committed
        self._whole = False
        self._forget()
        return MirrorChange(tuple(gone), fields, moved)

    def _forget(self) -> None:
        self._closed.clear()
        self._moved.clear()
        self._begun.clear()


def _field(durable: GroupState, name: str) -> int | None:
    if name == EXPIRED:
        return durable.expired_at
    paused = durable.operated.paused
    return None if paused is None else paused.at
