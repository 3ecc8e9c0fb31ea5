"""The judge: sees everything, knows what was really delivered and committed, and holds it against the rules.

The numbers in brackets are those of the invariants in section 9 of the design.
"""

from __future__ import annotations

import copy
from collections import Counter
from typing import TYPE_CHECKING, Any

from streamlease.leader.core import events as e
from streamlease.leader.core.lease import LeaseState
from streamlease.leader.core.machine import Leader
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.operated import Acted, RefusedAct
from streamlease.leader.core.state.records import (
    CutClosed,
    CutOpened,
    DeadLettered,
    Failed,
    HandedOver,
    Leased,
    Record,
    Released,
    StreamsAdvanced,
    StreamsForgotten,
    decode_records,
)
from streamlease.protocol.cuts import Ranges
from streamlease.protocol.group_options import GroupOptions
from streamlease.protocol.messages import (
    Disconnect,
    Grant,
    Grants,
    Invalidate,
    LeaderWanted,
    ProgressCommitted,
    RevokeFinished,
    UpdateProgress,
)
from streamlease.spark.core.checkpoint import CutOffset
from tests.simulation import generations, operators, poison
from tests.simulation.observed import Entry, Observed

if TYPE_CHECKING:
    from tests.simulation.kernel import Kernel

COMPARED = 61
"""One of so many steps of a leader is compared with a copy that was made before it."""

COMPARED_COMMITS = 7
"""Behind one of so many commits, the leader is compared with the journal."""

REPLAYED = 23
"""One of so many commits is followed by a replay of the whole journal."""


HeldAs = tuple[int | None, tuple[str, int, LeaseState] | None]
"""What is committed of a stream, the name and lease epoch of who holds it, and how far that lease is in its
life. To be given back is no matter of words but of plans, made in any step: `revoking` is as `granted`."""

MOST_LETTERS = 1000
MOST_KEYS = 400


class Violation(AssertionError):
    """An invariant does not hold."""


class Judge:
    """Watches one world."""

    lost_writes = False
    """Whether a failover has lost any."""

    def __init__(self, kernel: Kernel, store: Observed, sometimes: Counter[str]) -> None:
        self.kernel = kernel
        self.store = store
        self.sometimes = sometimes
        self.truth = GroupState()
        """What the journal says now."""
        self.last = (0, 0)
        self.committed: dict[str, int] = {}
        """The highest offset that was ever committed durably, of each stream."""
        self.passed: dict[str, int] = {}
        """Below this, everything of the stream was delivered or skipped."""
        self.seen: dict[str, dict[int, tuple[str, int]]] = {}
        """Stream -> offset -> session and lease epoch of its delivery under the newest lease."""
        self.bases: dict[tuple[str, int], int] = {}
        self.broken: dict[str, set[int]] = {}
        """Stream -> lease epochs that ended in another way than by a clean hand-over."""
        self.issued: dict[tuple[str, int], tuple[str, str]] = {}
        self.newest: dict[str, int] = {}
        """Stream -> the highest lease epoch issued."""
        self.healed: set[str] = set()
        """Streams of whose newest lease only a healed journal says: who had them before may commit until the
        next leader's first write, which fences that off before it grants anything."""
        self.holders: dict[tuple[str, int], str] = {}
        self.claimed: dict[int, str] = {}
        self.acting: dict[int, str] = {}
        self.grants: set[tuple[str, int, str]] = set()
        self.cuts: dict[tuple[str, int], Ranges] = {}
        self.ranges: dict[str, list[tuple[int, int, int]]] = {}
        """Of cuts: begin, end and lease epoch of each range that came out."""
        self.only_queries = False
        self.reset: dict[str, int] = {}
        """Streams whose progress an operator has reset, and the lease epoch that the newest reset spent."""
        self.lines: list[tuple[str, str, dict[int, tuple[str, int]], int]] = []
        """Of each reset: its request, a stream, what of it had come out at or above the new progress, and
        below which offset all had."""
        self.options = GroupOptions()
        self.candidates = 0
        self.duplicates = 0
        self.deliveries = 0
        self.commits = 0
        self.steps = 0
        self.beside: dict[str, tuple[int, str]] = {}
        """Stream -> how far it is beside the journal, and under which lease, as it was last seen."""
        self.said_committed: dict[str, int] = {}
        """The highest offset of each stream that was ever committed, also in a tail that is lost."""
        self.lost_lease_epochs: dict[str, int] = {}
        """The highest lease epoch of each stream when a failover last lost writes: what was read or committed
        under it, and under all before it, may be unknown to the store. Nothing else is excused by a loss."""
        self.line_lease_epochs: dict[tuple[str, str], int] = {}
        """Request of a reset and stream -> the lease epoch that it spent."""
        store.on_commit = self.appended
        store.on_snapshot = self.snapshot_taken
        store.on_claim = self.term_claimed
        store.on_direct = self.committed_directly

    def demand(self, holds: bool, *what: Any) -> None:
        """Raise unless it holds."""
        if not holds:
            raise Violation(" ".join(map(str, what)))

    # ------------------------------------------------------------ at the store

    def term_claimed(self, host: str, term: int) -> None:
        """[2] Somebody has begun a term."""
        if term in self.claimed:
            self.demand(False, "term", term, "of", self.claimed[term], "is given again, to", host)
        self.claimed[term] = host
        self.kernel.note("store", "term", term, "to", host)

    def appended(self, host: str, entry: Entry) -> None:
        """[3, 4, 5, 9] A commit stands in the journal."""
        actor = self.acting.setdefault(entry.term, host)
        self.demand(actor == host, actor, "and", host, "both act in term", entry.term)
        self.demand(
            entry.term == self.store.record.term, "a leader deposed in term", entry.term, "has written"
        )
        if (entry.term, entry.number) <= self.last:
            self.sometimes["a commit is written twice and read once"] += 1
            return
        self.last = (entry.term, entry.number)
        self.healed.clear()
        self.commits += 1
        for record in decode_records(entry.payload):
            self._record(record)
        for stream, progress in self.truth.streams.items():
            self._moved(stream, progress.committed)
        if self.commits % REPLAYED == 0:
            self.demand(self.store.replay() == self.truth, "the journal and its replay differ")
        self.demand(self.store.journal_length < 300, "the journal has grown to", self.store.journal_length)
        self._look_beside()

    def _look_beside(self) -> None:
        """[1, 4] What stands beside the journal goes back only by a reset, and says who has which stream."""
        before, self.beside = self.beside, self.store.beside()
        for stream, (committed, lease) in self.beside.items():
            known, progress = before.get(stream), self.truth.streams.get(stream)
            if progress is None:
                continue
            number, _, reset_by = lease.partition("/")
            self.demand(
                number == f"{progress.lease_epoch}{'' if progress.owner is not None else '-'}",
                stream, "can be committed under", number, "and is leased under", progress.lease_epoch,
            )  # fmt: skip
            if known is not None and known[1].partition("/")[2] == reset_by:
                self.demand(committed >= known[0], stream, "was at", known[0], "and goes back to", committed)

    def _record(self, record: Record) -> None:
        if isinstance(record, Leased):
            generations.granted(self, record.stream)
            poison.granted(self, record)
            key = (record.stream, record.lease_epoch)
            who = (record.name, record.session)
            known = self.issued.setdefault(key, who)
            self.demand(
                known == who and key not in self.bases,
                "lease epoch", key, "of", known, "is given again, to", who,
            )  # fmt: skip
            self.newest[record.stream] = max(record.lease_epoch, self.newest.get(record.stream, 0))
            known, so_far = self.truth.streams[record.stream].committed, self.store.committed(record.stream)
            self.sometimes["more was committed than the leader knew"] += known < so_far
            self.bases[key] = max(known, so_far)
        elif isinstance(record, StreamsAdvanced):
            generations.finished(self, record.finished)
        elif isinstance(record, StreamsForgotten):
            generations.forgotten(self, record.streams)
        elif isinstance(record, HandedOver):
            self.sometimes["a clean hand-over" if record.clean else "a take-over"] += 1
        elif isinstance(record, Failed):
            poison.failed(self, record)
        elif isinstance(record, DeadLettered):
            poison.dead_lettered(self, record)
        elif isinstance(record, CutOpened):
            self.sometimes["a cut is opened"] += 1
        elif isinstance(record, CutClosed):
            self.sometimes["a cut is closed"] += 1
        elif isinstance(record, Acted | RefusedAct):
            operators.acted(self, record)
        for stream in self.truth.apply(record):
            if stream in self.truth.streams:
                high = max(self.truth.streams[stream].committed, self.said_committed.get(stream, 0))
                self.said_committed[stream] = high

    def committed_directly(self, stream: str, lease_epoch: int, offset: int) -> None:
        """[1, 4, 5] Who has a stream has committed it."""
        self.sometimes["a stream is committed by who has it"] += 1
        newest = self.newest.get(stream, 0)
        self.demand(
            lease_epoch == newest or stream in self.healed or self._may_be_lost(stream, lease_epoch),
            stream, "is committed under lease epoch", lease_epoch, "though it is leased under", newest,
        )  # fmt: skip
        self.said_committed[stream] = max(offset, self.said_committed.get(stream, 0))
        self._came_out(stream, offset)
        self.beside[stream] = (self.store.committed(stream), self.beside.get(stream, (0, ""))[1])

    def _moved(self, stream: str, offset: int) -> None:
        high = self.committed.get(stream, 0)
        self.demand(offset >= high, stream, "was committed up to", high, "and is at", offset)
        self.committed[stream] = offset
        self.said_committed[stream] = max(offset, self.said_committed.get(stream, 0))
        self._came_out(stream, offset)

    def _came_out(self, stream: str, offset: int) -> None:
        """[5] All below `offset` was delivered, or skipped, or is a dead letter."""
        seen = self.seen.setdefault(stream, {})
        for number in range(self.passed.get(stream, 0), offset):
            out = number in seen or (stream, number) in self.store.dead
            self.demand(out, stream, "is committed to", offset, "but", number, "never came out")
        self.passed[stream] = max(offset, self.passed.get(stream, 0))

    def snapshot_taken(self, host: str) -> None:
        """[9] A snapshot says what the journal said, or more, if it takes the place of a lost tail."""
        assert self.store.kept is not None
        state = self.store.replay()
        if state != self.truth:
            anew = self.store.incarnation != self.store.record_lineage
            self.demand(anew, "the snapshot of", host, "is not what the journal says")
            operators.healed(self, state)
            self.truth = state
            for stream, progress in state.streams.items():
                self._moved(stream, progress.committed)
                if progress.owner is not None and progress.session is not None:
                    key = (stream, progress.lease_epoch)
                    self.issued.setdefault(key, (progress.owner, progress.session))
                    if progress.lease_epoch > self.newest.get(stream, 0):
                        self.newest[stream] = progress.lease_epoch
                        self.healed.add(stream)
                    self.bases.setdefault(key, progress.committed)
        self.last = max(self.last, self.store.kept[2:])
        self.sometimes["a snapshot"] += 1

    def failed_over(self, lost: int) -> None:
        """Writes may be lost; what the journal says now is the truth from here on."""
        self.sometimes["a failover"] += 1
        if lost:
            self.lost_writes = True
            self.sometimes["a failover that loses writes"] += 1
            state = self.store.replay()
            self.beside = self.store.beside()
            operators.lost(self, state)
            self.truth = state
            self.lost_lease_epochs |= self.newest
            self.committed = {stream: progress.committed for stream, progress in state.streams.items()}
            kept, journal = self.store.kept, self.store.journal
            self.last = (
                max(
                    (kept[2], kept[3]) if kept else (0, 0),
                    *((entry.term, entry.number) for entry in journal[-1:]),
                )
                if kept or journal
                else (0, 0)
            )

    # ------------------------------------------------------------ at the leaders

    def candidate(self, host: str, change: int) -> None:
        """A host has become a candidate, or is none any more."""
        self.candidates += change
        if self.candidates > 1:
            self.sometimes["two candidates at once"] += 1

    def recovered(self, leader: Leader) -> None:
        """[9] A leader has read the journal."""
        self.sometimes["a recovery"] += 1
        if self.store.record.term == leader.term and leader.ledger.lineage == self.store.incarnation:
            self.demand(leader.durable == self.truth, leader.host, "did not recover what the journal says")
        if any(progress.pinned_end is not None for progress in leader.durable.streams.values()):
            self.sometimes["a pinned end survives its leader"] += 1

    def written(self, leader: Leader) -> None:
        """[9] A commit was answered: leader and journal agree."""
        if self.last[0] == leader.term and self.last[1] % COMPARED_COMMITS == 0:
            self.demand(leader.durable == self.truth, "journal and memory of", leader.host, "differ")

    def step_leader(self, machine: Leader, event: e.Event, now: int, *, more: bool = False) -> list[e.Effect]:
        """[1, 10] Step a leader, and look at what it did."""
        self.steps += 1
        message = event.message if isinstance(event, e.Received) else None
        stale = self._stale(machine, message)
        before = copy.deepcopy(machine) if message is not None and self.steps % COMPARED == 0 else None
        refused = machine.ledger.refused
        kept = _kept_by_cuts(machine) if isinstance(event, e.Tick) else ()
        effects = machine.step(event, now, more=more)
        if machine.ledger.refused > refused:
            self.sometimes["a leader refuses an event"] += 1
            if (
                before is not None and not effects and not before.plans.due
            ):  # by an event before, of the same turn
                self.demand(_same(before, machine), "a refused event has changed the leader:", message)
        for stream, state in stale.items():
            self.demand(
                state == _held(machine, stream, free=state[1] is None),
                "a word about an ended lease of",
                stream,
                "has changed it:",
                message,
            )
            self.sometimes["a word about an ended lease is refused"] += 1
        for effect in effects:
            if isinstance(effect, e.Persist):
                self._broken(machine, event, effect.records)
            elif isinstance(effect, e.Send) and isinstance(effect.message, Invalidate):
                self.demand(
                    effect.message.reason != "revocation_timeout" or effect.message.borrower not in kept,
                    effect.message.borrower, "lives and is in the middle of a cut, and loses it",
                )  # fmt: skip
        self.sometimes["an open cut is waited for"] += bool(kept)
        return effects

    @staticmethod
    def _stale(machine: Leader, message: Any) -> dict[str, HeldAs]:
        """The streams of which a message speaks only under leases that are not its sender's, or not any more.

        Each as of `_held`.
        """
        about: list[tuple[str, int]] = []
        name = None
        if isinstance(message, UpdateProgress | Disconnect):
            about = [(entry.stream, entry.lease_epoch) for entry in message.progress]
            name = machine.peers.names.get(message.borrower)
        elif isinstance(message, RevokeFinished):
            about = [(message.stream, message.lease_epoch)]
            name = machine.peers.names.get(message.borrower)
        found: dict[str, HeldAs] = {}
        true: set[str] = set()
        for stream, lease_epoch in about:
            progress = machine.durable.streams.get(stream)
            lease = machine.leases.get(stream)
            if progress is None:
                continue
            if lease is not None and (lease.name, lease.lease_epoch) == (name, lease_epoch):
                true.add(stream)
            elif not (isinstance(message, Disconnect) and name is not None):
                found[stream] = _held(machine, stream, free=lease is None)
        return {stream: held for stream, held in found.items() if stream not in true}

    def _broken(self, machine: Leader, event: e.Event, records: tuple[Record, ...]) -> None:
        """Take note of leases that ended without a word of their owner."""
        message = event.message if isinstance(event, e.Received) else None
        for record in records:
            unheard = isinstance(event, e.Tick) or isinstance(message, LeaderWanted)
            if isinstance(record, Released) and unheard:
                self.broken.setdefault(record.stream, set()).add(record.lease_epoch)
                self.sometimes["a lease is ended without its owner"] += 1
            elif isinstance(record, Leased) and isinstance(message, LeaderWanted):
                lease_epoch = self.newest.get(record.stream, 0)
                former = self.issued.get((record.stream, lease_epoch))
                if former is not None and former[1] != record.session:
                    self.broken.setdefault(record.stream, set()).add(lease_epoch)
                    self.sometimes["a take-over by name"] += 1
                else:
                    self.sometimes["a session takes its streams back"] += 1

    def said(self, host: str, message: Any) -> None:
        """[1, 3] A leader has sent a message."""
        actor = self.acting.setdefault(message.term, host)
        self.demand(actor == host, actor, "and", host, "both act in term", message.term)
        match message:
            case Grant() | Grants():
                self.sometimes["grants are one message"] += isinstance(message, Grants)
                for offer in message.offers():
                    key = (offer.stream, offer.lease_epoch, message.borrower)
                    self.sometimes["a grant is sent again"] += key in self.grants
                    self.grants.add(key)
                    self.sometimes["a pinned end is inherited"] += offer.pinned_end is not None
            case Invalidate():
                self.sometimes[f"invalidated: {message.reason}"] += 1
            case ProgressCommitted():
                for entry in message.progress:
                    self.acknowledged(entry.stream, entry.offset)

    # ------------------------------------------------------------ at the consumers

    def believes(self, session: str, stream: str, lease_epoch: int) -> None:
        """[1] A session has been granted a stream."""
        holder = self.holders.setdefault((stream, lease_epoch), session)
        self.demand(
            holder == session, holder, "and", session, "both hold", stream, "under lease epoch", lease_epoch
        )

    def acknowledged(self, stream: str, offset: int) -> None:
        """[4] Somebody was told that everything below `offset` is committed."""
        self.demand(
            self.said_committed.get(stream, 0) >= offset,
            stream,
            "is not committed up to",
            offset,
            "but said to be",
        )

    def skipped(self, stream: str, lease_epoch: int, start: int, end: int) -> None:
        """Nothing of these offsets is for the group, says who has that lease."""
        seen = self.seen.setdefault(stream, {})
        for offset in range(start, end):
            if offset not in seen or seen[offset][0] == "nobody":
                seen[offset] = ("nobody", lease_epoch)

    def missing(self, stream: str, start: int, end: int) -> None:
        """[5] A consumer found nothing at these offsets: only a failover can have lost them."""
        self.demand(self.lost_writes, stream, "misses offsets", start, "to", end, "though Redis lost nothing")

    def cut_read(self, session: str, cut: CutOffset, ranges: Ranges) -> None:
        """[8] A cut is read: the same rows as ever, without those that others took over."""
        first = self.cuts.setdefault((session, cut.cut), cut.ranges)
        self.demand(cut.ranges == first, session, "has two cuts", cut.cut, first, cut.ranges)
        self.demand(set(ranges) <= set(first), session, "reads more than its cut", cut.cut, ranges, first)

    def undone(self, session: str, ranges: Ranges) -> None:
        """A sink was replaced by an older one: what it loses may come again, to the same query."""
        for part in ranges:
            seen = self.seen[part.stream]
            for offset in range(part.start, part.end):
                if seen.get(offset) == (session, part.lease_epoch):
                    seen[offset] = ("nobody", part.lease_epoch)

    def delivered(
        self, session: str, stream: str, lease_epoch: int, start: int, end: int, *, whole: bool = False
    ) -> None:
        """[5, 6, 8] Messages came out, under that lease; `whole`: as one range of a cut."""
        if whole and self.only_queries:
            for former in self.ranges.setdefault(stream, []):
                apart = former[1] <= start or end <= former[0]
                same = former[:2] == (start, end)
                older = min(lease_epoch, former[2])
                excused = self._may_be_lost(stream, older) or older < self.reset.get(stream, 0)
                self.demand(
                    apart or same or excused,
                    stream, (start, end), "comes after", former, "though a range must stay one range",
                )  # fmt: skip
                self.sometimes["a range comes again whole"] += same
            self.ranges[stream].append((start, end, lease_epoch))
        self.kernel.note(session, "got", f"{stream}[{start},{end})", "lease epoch", lease_epoch)
        base = self.bases.get((stream, lease_epoch))
        self.demand(
            base is not None, session, "reads", stream, "under lease epoch", lease_epoch, "which nobody gave"
        )
        self.demand(
            base is None or start >= base, session, "reads", stream, start, "below its lease's", base
        )  # fmt: skip
        generations.delivered(self, session, stream, lease_epoch)
        seen = self.seen.setdefault(stream, {})
        for offset in range(start, end):
            self.deliveries += 1
            former = seen.get(offset)
            if former is not None:
                self._twice(session, stream, lease_epoch, offset, former)
            if former is None or former[1] <= lease_epoch:
                seen[offset] = (session, lease_epoch)

    def _may_be_lost(self, stream: str, lease_epoch: int) -> bool:
        """Whether what was done under that lease may be unknown because a failover has lost writes."""
        return lease_epoch <= self.lost_lease_epochs.get(stream, 0)

    def _twice(
        self, session: str, stream: str, lease_epoch: int, offset: int, former: tuple[str, int]
    ) -> None:
        if former[0] == "nobody":
            return
        self.duplicates += 1
        self.sometimes["a message comes twice"] += 1
        low, high = sorted((lease_epoch, former[1]))
        ended = self.broken.get(stream, set())
        explained = any(low <= number < high for number in ended)
        lost = low < high and self._may_be_lost(stream, low)
        self.sometimes["a message comes twice because a failover lost writes"] += lost and not explained
        self.demand(
            explained or lost,
            stream, offset, "comes twice, to", former, "and", (session, lease_epoch),
            "and no fault explains it",
        )  # fmt: skip

    # ------------------------------------------------------------ at the end

    def bounded(self, leader: Leader) -> None:
        """[11] Nothing has grown without bound."""
        for name, length in self.store.mailboxes().items():
            self.demand(length <= MOST_LETTERS, "mailbox", name, "holds", length)
        self.demand(self.store.size < MOST_KEYS, "the store has", self.store.size, "keys")
        self.demand(len(leader.peers.arrivals) <= 10_000, "too many arrivals")
        self.demand(len(leader.durable.sessions) <= 40, "too many sessions are kept")


def _held(machine: Leader, stream: str, *, free: bool) -> HeldAs:
    """The progress of a stream, and its lease.

    Args:
        free: nobody holds it, so that the leader may grant it whenever it plans.
    """
    progress, lease = machine.durable.streams.get(stream), machine.leases.get(stream)
    held = None
    if lease is not None and not free:
        state = LeaseState.GRANTED if lease.state is LeaseState.REVOKING else lease.state
        held = (lease.name, lease.lease_epoch, state)
    return progress.committed if progress is not None else None, held


def _kept_by_cuts(machine: Leader) -> set[str]:
    """Borrowers that are asked only for streams in open cuts: they have as long as they want."""
    asked: dict[str, bool] = {}
    for stream, lease in machine.leases.items():
        if lease.state in (LeaseState.REVOKING, LeaseState.REVOKED):
            cuts = machine.durable.sessions.get(machine.peers[lease.name].session)
            in_cut = cuts is not None and stream in cuts.ranges
            asked[lease.name] = asked.get(lease.name, True) and in_cut
    given = machine.options.revocation_timeout_ms is not None
    return set() if given else {machine.peers[name].borrower for name, kept in asked.items() if kept}


def _same(before: Leader, after: Leader) -> bool:
    """Whether two leaders differ in counters and in the time of the last word only."""
    one, two = copy.deepcopy(before), copy.deepcopy(after)
    for leader in (one, two):
        leader.ledger.refused = 0
        for peer in leader.peers.values():
            peer.last_seen = 0
    return one == two
