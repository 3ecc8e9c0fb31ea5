"""The journal of one shared subscription: its records in a Redis stream, with snapshots and trimming.

Every write compares the leader's term in the same script, so a deposed leader writes nothing. One commit is
one entry, numbered within its term: a commit that is repeated because its answer was lost is read once,
even if its first copy arrives after a snapshot. Recovery is the newest snapshot and what follows it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from streamlease.leader.beside import arguments, lacking
from streamlease.leader.core.parts.mirror import MirrorChange
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.records import Record, decode_records, encode_records
from streamlease.protocol.errors import Fenced, NotDurable, StreamleaseError, Unsupported
from streamlease.registry import keys
from streamlease.registry.leadership import LineageChanged
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.streams.redis.damaged import parsing
from streamlease.streams.redis.durability import MEMORY, Durability
from streamlease.streams.redis.durable import run_durably
from streamlease.streams.redis.scripts import Call, load_script

_APPEND = load_script("streamlease.leader", "journal_append")
_SNAPSHOT = load_script("streamlease.leader", "journal_snapshot")
_ID = re.compile(rb"\d+-\d+")

PAGE = 1000
"""Journal entries read at once during recovery."""

ENTRIES_KEPT = 1000
"""Journal entries kept behind the newest snapshot."""

BYTES_KEPT = 8 * 1024 * 1024
"""About how many bytes of them are kept at most: one cut of 10,000 streams takes 300 kB."""

SNAPSHOT_EVERY = 500
"""Journal entries between two snapshots at most."""

SNAPSHOT_BYTES = 8 * 1024 * 1024
"""Bytes of them: what a new leader has to read besides the snapshot."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a journal says, and the entry up to which it says so."""

    state: GroupState
    last_id: bytes
    number: tuple[int, int] = (0, 0)
    """Term and number of the newest commit."""


async def recover(redis: AsyncRedis, group: str) -> Recovery:
    """Read the state of a group; an empty one if it has no journal. Changes nothing.

    Another leader may put a snapshot between, and drop entries that were not read yet: once more then.

    Raises:
        StoreUnavailable: Redis does not answer.
        Unsupported: the journal or the snapshot is damaged.
    """
    command = ("HMGET", keys.snapshot(group), "id", "state", "t", "n")
    (held,) = await ask(redis, [command])
    while True:
        recovery: Recovery | Unsupported
        try:
            recovery = await _recovered(redis, group, held)
        except Unsupported as damage:
            recovery = damage
        (newest,) = await ask(redis, [("HGET", keys.snapshot(group), "id")])
        if newest == held[0]:
            break
        (held,) = await ask(redis, [command])
    if isinstance(recovery, Unsupported):
        raise recovery
    return recovery


async def recover_behind(redis: AsyncRedis, group: str, so_far: Recovery) -> Recovery | None:
    """Go on behind what was read before, whose state changes. None: what came behind it is gone.

    Raises: as `recover`.
    """
    while so_far.last_id != b"0-0":
        command = ("XRANGE", keys.journal(group), so_far.last_id, "+", "COUNT", PAGE)
        (entries,) = await ask(redis, [command])
        if not entries or entries[0][0] != so_far.last_id:
            return None
        so_far = _with(group, so_far, entries[1:])
        if len(entries) < PAGE:
            return so_far
    return None


async def recover_upto(redis: AsyncRedis, group: str, last_id: bytes) -> Recovery | None:
    """The state of a group as of an entry of its journal. None: that entry, or what is before it, is gone.

    Raises: as `recover`.
    """
    (held,) = await ask(redis, [("HMGET", keys.snapshot(group), "id", "state", "t", "n")])
    with parsing(f"the snapshot of group {group}", keys.snapshot(group)):
        found = Recovery(*read_snapshot(held))
    while found.last_id != last_id:
        command = ("XRANGE", keys.journal(group), b"(" + found.last_id, last_id, "COUNT", PAGE)
        (entries,) = await ask(redis, [command])
        if not entries:
            return None
        found = _with(group, found, entries)
    return found


def _with(group: str, so_far: Recovery, entries: Sequence[tuple[bytes, Sequence[bytes]]]) -> Recovery:
    last_id, last = so_far.last_id, so_far.number
    for entry in entries:
        last_id = entry[0]
        with parsing(_told(group, last_id), keys.journal(group)):
            number, records = _of_entry(entry, last)
            for record in records:
                so_far.state.apply(record)
        last = max(last, number)
    return Recovery(so_far.state, last_id, last)


async def _recovered(redis: AsyncRedis, group: str, held: Sequence[bytes | None]) -> Recovery:
    """What the snapshot `held` and the entries behind it say.

    Raises:
        Unsupported: they cannot be read, or do not fit together.
    """
    with parsing(f"the snapshot of group {group}", keys.snapshot(group)):
        found = Recovery(*read_snapshot(held))
    while True:
        command = ("XRANGE", keys.journal(group), b"(" + found.last_id, "+", "COUNT", PAGE)
        (entries,) = await ask(redis, [command])
        if not entries:
            return found
        found = _with(group, found, entries)


def read_snapshot(held: Sequence[bytes | None]) -> tuple[GroupState, bytes, tuple[int, int]]:
    """State, id of the entry up to which it holds everything, term and number of that commit.

    Args:
        held: the fields ``id``, ``state``, ``t``, ``n``; all None: there is no snapshot yet.

    Raises:
        ValueError: they are damaged.
    """
    if held[0] is None and held[1] is None:
        return GroupState(), b"0-0", (0, 0)
    id, text = held[:2]
    if id is None or text is None:
        raise ValueError(f"it has no {'id' if id is None else 'state'}")
    if not _ID.fullmatch(id):
        raise ValueError(f"{id!r:.80} is not the id of an entry")
    return GroupState.restore(text), id, (_counted(held[2] or b"0"), _counted(held[3] or b"0"))


def read_entry(
    group: str, entry: tuple[bytes, Sequence[bytes]], applied: tuple[int, int]
) -> tuple[tuple[int, int], list[Record]]:
    """Term and number of the commit in an entry, and its records: none if it is not newer than `applied`.

    Raises:
        Unsupported: it is damaged.
    """
    with parsing(_told(group, entry[0]), keys.journal(group)):
        return _of_entry(entry, applied)


def _of_entry(
    entry: tuple[bytes, Sequence[bytes]], applied: tuple[int, int]
) -> tuple[tuple[int, int], list[Record]]:
    fields = entry[1]
    parts = dict(zip(fields[::2], fields[1::2], strict=True))
    number = (_counted(parts[b"t"]), _counted(parts[b"n"]))
    return number, decode_records(parts[b"r"]) if number > applied else []


def _told(group: str, id: bytes) -> str:
    return f"entry {id.decode()} of the journal of group {group}"


def _counted(text: bytes) -> int:
    if not text.isdigit():
        raise ValueError(f"{text!r:.80} is not a number of at least 0")
    return int(text)


class TailLost(StreamleaseError):
    """Redis lost the newest entries of a journal that the leader had written."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One group commit, as it is written however often."""

    number: int
    payload: bytes
    moved: MirrorChange


class Journal:
    """The writing end, for one leader in one term."""

    def __init__(
        self,
        redis: AsyncRedis,
        group: str,
        host: str,
        term: int,
        last_id: bytes,
        durability: tuple[Durability, ...] = (),
        lineage: str = "",
    ) -> None:
        self._redis = redis
        self._group = group
        self._host = host
        self._term = term
        self._lineage = lineage
        self._leader, self._journal = keys.leader(group), keys.journal(group)
        self._snapshot_key = keys.snapshot(group)
        self._progress, self._leases = keys.progress(group), keys.leases(group)
        self._number = 0
        self.durability = durability
        """What every write must satisfy before it counts."""
        self.last_id = last_id
        """Id of the newest entry written or recovered."""
        self.since_snapshot = 0
        """Entries written since the newest snapshot."""
        self._bytes = 0
        """Their bytes."""
        self._sizes: deque[int] = deque(maxlen=ENTRIES_KEPT)
        """Bytes of the newest entries."""

    @property
    def wants_snapshot(self) -> bool:
        """Whether so much was written that a snapshot should take its place."""
        return self.since_snapshot >= SNAPSHOT_EVERY or self._bytes >= SNAPSHOT_BYTES

    def next_commit(self, records: Sequence[Record], moved: MirrorChange | None = None) -> Commit:
        """Give a commit its number; `write` may then be repeated until it is answered.

        Args:
            moved: what `records` change of the leases and the progress that stand beside the journal.
        """
        self._number += 1
        return Commit(self._number, encode_records(records), moved or MirrorChange())

    async def write(self, commit: Commit) -> dict[str, int]:
        """Write one commit, and who may commit streams from then on, in one act.

        Returns:
            of which of the streams that `moved` asks for more is committed than the leader knew.

        Raises:
            Fenced: another leader has followed.
            TailLost: entries written before are gone; `heal` before anything else.
            LineageChanged: entries written before may be gone; `heal`, and give up the term.
            StoreUnavailable, StoreRefused: not written; repeat.
            NotDurable: written, but not durably; repeat.
            Indefinite: written or not; repeat.
        """
        durable = " ".join(str(choice) for choice in self.durability if choice != MEMORY)
        moved, known = commit.moved, dict[str, int]()
        if moved.whole:
            moved, known = await lacking(self._redis, self._group, self.last_id, moved)
        call = _APPEND.call(
            [self._leader, self._journal, self._progress, self._leases],
            [
                self._host,
                self._term,
                commit.number,
                commit.payload,
                self.last_id,
                self._lineage,
                durable,
                *arguments(moved),
            ],
        )
        self.last_id, *further = await self._run(call)
        self.since_snapshot += 1
        self._bytes += len(commit.payload)
        self._sizes.append(len(commit.payload))
        for stream, offset in zip(further[::2], further[1::2], strict=True):
            known[stream.decode()] = int(offset)
        return known

    async def snapshot(self, state: bytes) -> None:
        """Store `state`, which holds everything up to `last_id`, and drop what it contains.

        Raises: as `write`.
        """
        await self._snapshot(state, mark=False)

    async def _snapshot(self, state: bytes, *, mark: bool) -> None:
        call = _SNAPSHOT.call(
            [self._leader, self._journal, self._snapshot_key],
            [self._host, self._term, self.last_id, state, self._kept(), self._number, int(mark)],
        )
        (self.last_id,) = await self._run(call)
        self.since_snapshot = self._bytes = 0

    def _kept(self) -> int:
        """How many of the newest entries stay; the newest in any case: there the journal ends."""
        left = BYTES_KEPT
        for number, size in enumerate(reversed(self._sizes)):
            left -= size
            if left < 0:
                return max(1, number)
        return ENTRIES_KEPT

    async def heal(self, state: bytes) -> None:
        """Put a snapshot of all that the leader knows behind what is left of the journal.

        For `TailLost` and `LineageChanged`. An empty entry goes with it: if the snapshot is lost in its turn,
        that is noticed at the next write. What is lost, or comes, while it is put there is behind it, too.

        Raises: as `write`, but for `TailLost`.
        """
        while True:
            (entries,) = await ask(self._redis, [("XREVRANGE", self._journal, "+", "-", "COUNT", 1)])
            self.last_id = entries[0][0] if entries else b"0-0"
            try:
                return await self._snapshot(state, mark=True)
            except TailLost:
                continue  # it ends elsewhere by now

    async def _run(self, call: Call) -> list[bytes]:
        (outcome, result, *more), why = await run_durably(self._redis, call, self.durability)
        if outcome == 0:
            raise Fenced(
                f"host {self._host} leads {self._group} no more: its term {self._term} "
                f"was followed by term {result.decode()}"
            )
        if outcome == 3:
            raise LineageChanged(
                f"term {self._term} of {self._group} was issued before Redis was restarted or replaced"
            )
        if outcome == 2:
            raise TailLost(
                f"the journal of group {self._group} ends with entry {result.decode()}, but "
                f"{self._host} wrote up to {self.last_id.decode()}: Redis lost acknowledged writes"
            )
        if why:
            raise NotDurable(f"the journal of group {self._group} is written, but not durably: {why}")
        return [result, *more]
