"""What is durable about the cuts of a group: per session the newest finished one, and the open one.

===================  ===============================================================================
opened               a session has one open cut; whatever was open before is finished
a stream leaves it   its session lost it, or it is not of the group any more
closed               what is left of its ranges is consumed; it is the newest finished one
forgotten            with the session, which nobody comes back for; nothing of it is consumed
===================  ===============================================================================
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict, Field, RootModel

from streamlease.leader.core.state.fields import Number
from streamlease.leader.core.state.open_ranges import OpenRanges, OpenRangesField
from streamlease.leader.core.state.records import CutClosed, CutOpened
from streamlease.protocol.cuts import NO_RANGES, Ranges


class SessionCuts(BaseModel):
    """What is durable about one session's cuts."""

    model_config = ConfigDict(extra="forbid")

    finished: Number = 0
    cut: Number = 0
    """Number of the open cut; 0 if none is open."""
    ranges: OpenRangesField = Field(default_factory=OpenRanges)


class GroupCuts(RootModel[dict[str, SessionCuts]]):
    """The cuts of all sessions; stored as a document with a field for each of them."""

    root: dict[str, SessionCuts] = Field(default_factory=dict)

    def get(self, session: str) -> SessionCuts | None:
        """Those of one session; None if it has had none."""
        return self.root.get(session)

    def __getitem__(self, session: str) -> SessionCuts:
        return self.root[session]

    def __contains__(self, session: object) -> bool:
        return session in self.root

    def __iter__(self) -> Iterator[str]:  # type: ignore[override]  # of its sessions, not of its fields
        return iter(self.root)

    def __len__(self) -> int:
        return len(self.root)

    def open(self, record: CutOpened) -> None:
        """A cut is fixed."""
        cuts = self.root.setdefault(record.session, SessionCuts())
        cuts.cut = record.cut
        cuts.finished = max(cuts.finished, record.cut - 1)
        cuts.ranges = OpenRanges(record.ranges)

    def close(self, record: CutClosed) -> Ranges:
        """A cut went through its sink; the ranges that are consumed with it."""
        cuts = self.root.setdefault(record.session, SessionCuts())
        closed = NO_RANGES
        if cuts.cut == record.cut:
            closed = cuts.ranges.left
            cuts.cut = 0
            cuts.ranges = OpenRanges()
        cuts.finished = max(cuts.finished, record.cut)
        return closed

    def forget(self, session: str) -> Ranges:
        """Forget a session; what was open."""
        cuts = self.root.pop(session, None)
        return cuts.ranges.left if cuts is not None else NO_RANGES

    def has_open(self, session: str | None, stream: str) -> bool:
        """Whether the open cut of a session has a part of the stream."""
        cuts = self.root.get(session) if session is not None else None
        return cuts is not None and stream in cuts.ranges

    def leave(self, session: str | None, stream: str) -> int | None:
        """Take the stream out of a session's open cut; where its part ended, None if it has none."""
        cuts = self.root.get(session) if session is not None else None
        return cuts.ranges.leave(stream) if cuts is not None else None

    def forget_stream(self, stream: str) -> None:
        """Take the stream out of every open cut."""
        for cuts in self.root.values():
            cuts.ranges.leave(stream)

    def in_open(self) -> dict[str, str]:
        """The streams of the open cuts -> whose cut it is."""
        return {stream: session for session, cuts in self.root.items() for stream in cuts.ranges}
