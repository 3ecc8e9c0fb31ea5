"""The store of the simulation: what the Lua scripts and commands do, and what a failover undoes.

Every act is atomic, as a script is. Each change leaves behind how to take it back, for as long as a failover
may still lose it. Messages of topics are never lost: they count as published with ``replicated:K``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from streamlease.leader.core.group_state import GroupState
from streamlease.leader.core.records import decode_records
from streamlease.protocol.messages import Message
from streamlease.registry.leadership import NOBODY, LeaderRecord
from tests.simulation.generations import Generations
from tests.simulation.kernel import Kernel

KEPT_MS = 5000
"""The longest tail that a failover can lose."""

MAX_ENTRIES = 150
LIFETIME_MS = 20_000
HOST_SILENCE_MS = 6000
ENTRIES_KEPT = 20


@dataclass
class Entry:
    """One entry of the journal."""

    id: tuple[int, int]
    term: int
    number: int
    payload: bytes


@dataclass
class Box:
    """One mailbox."""

    expires_at: int
    last: tuple[int, int]
    entries: list[tuple[tuple[int, int], str, tuple[Message, ...]]] = field(default_factory=list)


class Store:
    """One Redis and its keys of one shared subscription."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.incarnation = 0
        """Rises when its process ends: what was on its way to it never arrives. It names the lineage of the
        data too: every server that was restarted or promoted has another replication id."""
        self.promoted = False
        """Whether it was a replica once."""
        self.down_until = 0
        self.jumped = 0
        self.streams: dict[str, int] = {}
        self.space = Generations(self.streams)
        self.dead: dict[tuple[str, int], int] = {}
        """Stream and offset of each dead letter -> its own offset."""
        self.record: LeaderRecord = NOBODY
        self.record_lineage = -1
        """In which lineage the term of the record was issued."""
        self.journal: list[Entry] = []
        self.last_entry = (0, 0)
        self.kept: tuple[tuple[int, int], bytes, int, int] | None = None
        """The snapshot: id, state, term and number of the last commit in it."""
        self.arrivals = 0
        self.boxes: dict[str, Box] = {}
        self.hosts: dict[str, int] = {}
        self.jobs: dict[str, int] = {}
        self.on_letter: Callable[[str], None] = lambda owner: None
        self.on_commit: Callable[[str, Entry], None] = lambda host, entry: None
        self.on_snapshot: Callable[[str], None] = lambda host: None
        self.on_claim: Callable[[str, int], None] = lambda host, term: None
        self._undo: deque[tuple[int, Callable[[], None]]] = deque()

    def time(self) -> int:
        """Milliseconds of its clock."""
        return 1_000_000 + self.kernel.now + self.jumped

    @property
    def down(self) -> bool:
        """Whether it answers nothing now."""
        return self.down_until > self.kernel.now

    # ------------------------------------------------------------ ends of its process

    def restart(self, ms: int) -> None:
        """It is away for a while, and loses nothing."""
        self.incarnation += 1
        self.down_until = self.kernel.now + ms

    def fail_over(self, ms: int, lost_ms: int, jump: int) -> int:
        """Another server takes over without the newest writes, with another clock; how many are lost."""
        self.restart(ms)
        self.promoted = True
        lost = 0
        while self._undo and self._undo[-1][0] > self.kernel.now - lost_ms:
            self._undo.pop()[1]()
            lost += 1
        self.jumped += jump
        return lost

    def _changed(self, undo: Callable[[], None]) -> None:
        now = self.kernel.now
        self._undo.append((now, undo))
        while self._undo[0][0] < now - KEPT_MS:
            self._undo.popleft()

    def _set(self, name: str, value: Any) -> None:
        before = getattr(self, name)
        setattr(self, name, value)
        self._changed(lambda: setattr(self, name, before))

    def _put(self, where: dict[str, Any], key: str, value: Any) -> None:
        had, before = key in where, where.get(key)

        def undo() -> None:
            if had:
                where[key] = before
            else:
                where.pop(key, None)

        if value is None:
            where.pop(key, None)
        else:
            where[key] = value
        self._changed(undo)

    # ------------------------------------------------------------ leadership (registry/lua)

    def read_leader(self) -> LeaderRecord:
        """``HMGET`` and ``TIME``."""
        return replace(self.record, read_at=self.time())

    def claim(self, host: str, ttl: int, floor: int, leap: int) -> tuple[bool, int, int]:
        """claim.lua"""
        if self.record.held:
            return False, self.record.term, 0
        return True, self._lead(host, ttl, floor, leap), self.incarnation

    def take_over(
        self, host: str, ttl: int, floor: int, watched: LeaderRecord, leap: int
    ) -> tuple[bool, int, int]:
        """take_over.lua"""
        held = self.record
        if (held.term, held.renewed_at) != (watched.term, watched.renewed_at):
            return False, held.term, 0
        if abs(self.time() - held.renewed_at) < held.ttl:
            return False, held.term, 0
        return True, self._lead(host, ttl, floor, leap), self.incarnation

    def _lead(self, host: str, ttl: int, floor: int, leap: int) -> int:
        known = self.record.term
        if floor > known or (self.incarnation != self.record_lineage if known else self.promoted):
            term = max(floor, known) + leap
        else:
            term = known + 1
        now = self.time()
        self._set("record", LeaderRecord(term, host, host, now, ttl, now))
        self._set("record_lineage", self.incarnation)
        self.on_claim(host, term)
        return term

    def witness(self, term: int) -> bool:
        """witness.lua"""
        if self.record.term >= term:
            return False
        self._set("record", replace(self.record, term=term, host="", mailbox="", renewed_at=0))
        return True

    def _leads(self, host: str, term: int) -> bool:
        return (self.record.term, self.record.host) == (term, host)

    def renew(self, host: str, term: int, lineage: int) -> tuple[int, int]:
        """renew.lua"""
        if not self._leads(host, term):
            return 0, self.record.term
        if lineage != self.incarnation:
            return 2, self.incarnation
        self._set("record", replace(self.record, renewed_at=self.time()))
        return 1, self.record.term

    def resign(self, host: str, term: int) -> bool:
        """resign.lua"""
        if not self._leads(host, term):
            return False
        self._set("record", replace(self.record, host="", mailbox="", renewed_at=0))
        return True

    # ------------------------------------------------------------ journal (leader/lua)

    def journal_append(
        self, host: str, term: int, number: int, payload: bytes, after: tuple[int, int], lineage: int
    ) -> tuple[int, Any]:
        """journal_append.lua"""
        if not self._leads(host, term):
            return 0, self.record.term
        if lineage != self.incarnation:
            return 3, self.incarnation
        newest = self.journal[-1] if self.journal else None
        last = newest.id if newest is not None else (0, 0)
        if last != after:
            if newest is not None and (newest.term, newest.number) == (term, number):
                return 1, last
            return 2, last
        entry = Entry(self._next_id(self.last_entry), term, number, payload)
        self._set("last_entry", entry.id)
        self._set("journal", [*self.journal, entry])
        self.on_commit(host, entry)
        return 1, entry.id

    def journal_snapshot(
        self, host: str, term: int, id: tuple[int, int], state: bytes, number: int, mark: bool
    ) -> tuple[int, Any]:
        """journal_snapshot.lua"""
        if not self._leads(host, term):
            return 0, self.record.term
        last = self.journal_end()
        if last != id:
            return 2, last
        if mark:
            last = self._next_id(self.last_entry)
            self._set("last_entry", last)
            self._set("journal", [*self.journal, Entry(last, term, number, b"[]")])
        self._set("kept", (last, state, term, number))
        self._set("journal", self.journal[-ENTRIES_KEPT:])
        self.on_snapshot(host)
        return 1, last

    def journal_end(self) -> tuple[int, int]:
        """``XREVRANGE COUNT 1``"""
        return self.journal[-1].id if self.journal else (0, 0)

    @property
    def journal_length(self) -> int:
        """How many entries it has."""
        return len(self.journal)

    def journal_after(self, id: tuple[int, int]) -> list[Entry]:
        """``XRANGE`` from behind `id` on."""
        return [entry for entry in self.journal if entry.id > id]

    def _next_id(self, last: tuple[int, int]) -> tuple[int, int]:
        now = self.time()
        return (now, 0) if now > last[0] else (last[0], last[1] + 1)

    # ------------------------------------------------------------ streams and arrivals

    def append(self, stream: str, count: int) -> None:
        """append.lua, of messages that no failover loses; a sealed stream takes none."""
        if stream not in self.space.sealed:
            self.streams[stream] += count

    def write_dead_letter(self, stream: str, offset: int) -> int:
        """What `DeadLetters.write` does: once for each message, however often it is asked for."""
        return self.dead.setdefault((stream, offset), len(self.dead))

    def ends(self, streams: Sequence[str]) -> dict[str, int]:
        """The next offset of each of `streams` that exists."""
        return {stream: self.streams[stream] for stream in streams if stream in self.streams}

    def arrive(self) -> int:
        """``INCR``"""
        self._set("arrivals", self.arrivals + 1)
        return self.arrivals

    # ------------------------------------------------------------ hosts and spawn jobs

    def beat(self, host: str) -> None:
        """host_alive.lua"""
        self._put(self.hosts, host, self.time())

    def leave(self, host: str) -> None:
        """``ZREM``"""
        self._put(self.hosts, host, None)

    def alive_hosts(self) -> list[str]:
        """hosts.lua"""
        now = self.time()
        return [host for host, at in self.hosts.items() if at >= now - HOST_SILENCE_MS]

    def enqueue(self, job: str) -> bool:
        """RQ's unique job; whether it is new."""
        if self.jobs.get(job, 0) > self.time():
            return False
        self._put(self.jobs, job, self.time() + 10_000)
        return True

    # ------------------------------------------------------------ mailboxes

    def _box(self, owner: str) -> Box | None:
        box = self.boxes.get(owner)
        if box is not None and box.expires_at <= self.time():
            del self.boxes[owner]
            return None
        return box

    def open_box(self, owner: str) -> None:
        """``XADD`` and ``PEXPIRE``"""
        box = self._box(owner)
        if box is None:
            box = Box(0, (0, 0))
            self._put(self.boxes, owner, box)
        before = box.expires_at
        box.expires_at = self.time() + LIFETIME_MS
        self._changed(lambda: setattr(box, "expires_at", before))
        self._add(box, "", ())

    def close_box(self, owner: str) -> None:
        """``DEL``"""
        self._put(self.boxes, owner, None)

    def send(self, sender: str, owner: str, messages: tuple[Message, ...]) -> bool:
        """``XADD NOMKSTREAM MAXLEN``; whether somebody is there."""
        box = self._box(owner)
        if box is None:
            return False
        self._add(box, sender, messages)
        self.on_letter(owner)
        return True

    def _add(self, box: Box, sender: str, messages: tuple[Message, ...]) -> None:
        last, entries = box.last, box.entries
        box.last = self._next_id(last)
        box.entries = [*entries, (box.last, sender, messages)][-MAX_ENTRIES:]

        def undo() -> None:
            box.last, box.entries = last, entries

        self._changed(undo)

    def receive(
        self, owner: str, after: tuple[int, int]
    ) -> list[tuple[tuple[int, int], str, tuple[Message, ...]]]:
        """``XREAD`` behind `after`, and ``XTRIM`` of what was read before."""
        box = self._box(owner)
        if box is None:
            return []
        if box.entries and box.entries[0][0] <= after:
            before = box.entries
            box.entries = [entry for entry in before if entry[0] > after]
            self._changed(lambda: setattr(box, "entries", before))
        return box.entries[:500]


def replayed(kept: tuple[tuple[int, int], bytes, int, int] | None, entries: Sequence[Entry]) -> GroupState:
    """The state that a snapshot and what follows it say; see `streamlease.leader.journal.recover`."""
    state, last = GroupState(), (0, 0)
    if kept is not None:
        state, last = GroupState.restore(kept[1]), (kept[2], kept[3])
    for entry in entries:
        number = (entry.term, entry.number)
        if number > last:
            last = number
            for record in decode_records(entry.payload):
                state.apply(record)
    return state
