"""One group as the console shows it: its streams, its lag over time, and what happened."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from streamlease.admin.facts.rows import lag_of, total
from streamlease.admin.ui.attention import OLD_SECONDS
from streamlease.admin.ui.board_rows import GroupOnPage, GroupWord, StreamRow
from streamlease.admin.ui.group_events import act_of, event_of, event_of_act
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.operated import KeptAct
from streamlease.leader.core.state.progress import StreamProgress
from streamlease.leader.journals import JournalNews
from streamlease.registry.leadership import LeaderRecord

if TYPE_CHECKING:
    from streamlease.protocol.topics import SharedSubscription

LAG_POINTS = 1200
"""Points of the lag of a group that are kept."""

EVENTS = 500
"""Newest events of a group that are kept."""

PAUSE_MS = 15_000
HEAT_MS = 5000
HEAT_POINTS = 72
"""Points of the lag of each stream, `HEAT_MS` apart; streams without lag cost nothing."""

HEAT_STREAMS = 48
"""Streams that the heat map shows: those that had most."""


@dataclass(slots=True)
class GroupBoard:
    """What is known of it."""

    subscription: SharedSubscription
    rows: dict[str, StreamRow] = field(default_factory=dict)
    lag: deque[tuple[int, int | None]] = field(default_factory=lambda: deque(maxlen=LAG_POINTS))
    """Time (ms since 1970) and lag of all streams."""
    heat: deque[tuple[int, dict[str, int | None] | None]] = field(
        default_factory=lambda: deque(maxlen=HEAT_POINTS)
    )
    """Time and lag of each stream that had one, or whose lag was unknown; None: nobody looked until then."""
    events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=EVENTS))
    summary: GroupOnPage | None = None
    """None: it was not looked at yet."""
    written: int = 0
    """How many events there were; the newest is event number `written`."""
    _acts: deque[tuple[str, int]] = field(default_factory=lambda: deque(maxlen=EVENTS))
    """Which acts are among them. A record is written a moment after its act, so its time does not tell."""

    def take(
        self,
        news: JournalNews,
        state: GroupState,
        ends: Mapping[str, int],
        now: int,
        begins: Mapping[str, int] | None,
    ) -> None:
        """What one look found.

        Args:
            ends: the next offset of each stream, by name.
            now: milliseconds since 1970.
            begins: of a group that no leader has begun yet, where each stream would begin; None: not known.
        """
        first = not self.lag
        # What was done before somebody looked stands in the state, also where the journal begins later.
        before = state.operated.acts if first else []
        self._acts.extend(map(_which, before))
        events = [event_of_act(act) for act in before]
        told = self.events[-1]["at"] if self.events and news.anew else 0
        newest = [event | {"number": 0} for event in self.events if event["at"] == told]
        for at, record in news.records:
            act = act_of(record)
            known = at < told or (act is not None and _which(act) in self._acts)
            if act is not None and not known:
                self._acts.append(_which(act))
            event = None if known else event_of(record, at)
            if event is not None and event | {"number": 0} not in newest:
                events.append(event)
        for event in sorted(events, key=itemgetter("at")) if first else events:
            self._tell(event)
        rows: dict[str, StreamRow] = {}
        for stream, progress in state.streams.items():
            row, made = self.rows.get(stream), _row(stream, progress, ends.get(stream))
            rows[stream] = made if row is None or row != made else row
        if not rows:
            for stream, begin in (begins or {}).items():
                next = ends.get(stream)
                rows[stream] = StreamRow(stream, None, 0, "free", begin, next, lag_of(next, begin))
        self.rows = rows
        known = bool(rows) or begins is not None
        if self.lag and now - self.lag[-1][0] > PAUSE_MS:
            self.lag.append((now - 1, None))  # nobody looked meanwhile: no line leads over it
        self.lag.append((now, total(row.lag for row in rows.values()) if known else None))
        if self.heat and now - self.heat[-1][0] > PAUSE_MS:
            self.heat.append((now - 1, None))
        if not self.heat or self.heat[-1][1] is None or now - self.heat[-1][0] >= HEAT_MS:
            self.heat.append((now, {row.stream: row.lag for row in rows.values() if row.lag != 0}))

    def _tell(self, event: dict[str, Any]) -> None:
        self.written += 1
        self.events.append({"number": self.written, **event})

    def heat_map(self) -> dict[str, Any]:
        """The lag over time of the streams that had most, and before them of those where it was unknown.

        An unknown lag is null. ``gaps`` are the places of the times until when nobody looked.
        """
        most: dict[str, int] = {}
        unknown: set[str] = set()
        for _, lags in self.heat:
            for stream, lag in (lags or {}).items():
                most[stream] = max(most.get(stream, 0), lag or 0)
                if lag is None:
                    unknown.add(stream)
        shown = sorted(most, key=lambda stream: (stream not in unknown, -most[stream], stream))
        shown = shown[:HEAT_STREAMS]
        return {
            "times": [time for time, _ in self.heat],
            "streams": [
                [one, [None if lags is None else lags.get(one, 0) for _, lags in self.heat]] for one in shown
            ],
            "gaps": [place for place, (_, lags) in enumerate(self.heat) if lags is None],
            "others": len(most) - len(shown),
        }

    def summarize(
        self,
        state: GroupState,
        leader: LeaderRecord,
        spaces: Sequence[str],
        rate: float | None,
        lag_seconds: float | None,
        borrowers: int | None,
    ) -> None:
        """Make the row of the whole group.

        Args:
            borrowers: that the catalog knows; None: it cannot be read.
        """
        lag = self.lag[-1][1]
        led = leader.leader is not None
        # The owners that a dead leader left in the journal hold nothing and may be dead, too.
        owned = [row.owner for row in self.rows.values() if led and row.owner is not None]
        if led:
            # The catalog is looked at less often than the journal.
            borrowers = max(len({*owned}), borrowers or 0)
        stopped = [row.stream for row in self.rows.values() if row.state == "stopped"]
        paused = state.operated.paused
        self.summary = GroupOnPage(
            subscription=str(self.subscription),
            leader=leader.leader,
            term=leader.term,
            streams=len(self.rows),
            held=len(owned),
            borrowers=borrowers,
            moves=state.moves,
            lag=lag,
            lag_seconds=lag_seconds,
            rate=rate,
            state=_word(
                bool(stopped), paused is not None, led, bool(borrowers), state.expired_at is not None,
                lag, lag_seconds, rate,
            ),
            spaces=[*spaces],
            paused_since=None if paused is None else paused.at,
            paused_by=None if paused is None else paused.who,
            stopped=stopped,
            dead_letters=sum(progress.dead_letters for progress in state.streams.values()),
            expired=state.expired_at is not None,
        )  # fmt: skip


def _word(
    stopped: bool,
    paused: bool,
    led: bool,
    consumed: bool,
    expired: bool,
    lag: int | None,
    seconds: float | None,
    rate: float | None,
) -> GroupWord:
    if stopped:
        return "stopped"
    if paused:
        return "paused"
    if expired:
        return "expired"
    if lag != 0 and not led:
        return "no leader"
    if lag != 0 and not consumed:
        return "no consumers"
    if seconds is not None and seconds >= OLD_SECONDS:
        return "behind"
    return "consuming" if lag or rate else "idle"


def _which(act: KeptAct) -> tuple[str, int]:
    """What tells an act from all others; an expiry has no request."""
    return act.request, act.at


def _row(stream: str, progress: StreamProgress, next: int | None) -> StreamRow:
    failure = progress.failure
    if failure is not None and progress.blocked and failure.fate == "stop":
        state = "stopped"
    elif progress.finished:
        state = "finished"
    elif progress.waiting:
        state = "waiting"
    else:
        state = "free" if progress.owner is None else "held"
    committed = progress.committed
    return StreamRow(
        stream, progress.owner, progress.lease_epoch, state, committed, next, lag_of(next, committed)
    )
