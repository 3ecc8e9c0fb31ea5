"""What stands in the in-memory server, in the words of the judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.records import decode_records
from streamlease.protocol.ids import StreamId
from streamlease.registry import keys, leadership, pulses
from streamlease.registry.dead_letters import SPACE as DEAD_LETTERS
from streamlease.registry.leadership import LeaderRecord
from streamlease.streams.log.keys import stream_meta
from streamlease.streams.redis.scripts import load_script
from streamlease.streams.spaces.definitions import Space
from streamlease.streams.spaces.known import read_definitions
from streamlease.testing.memory.memory_server import MemoryServer

SPACE = "s"
_DONE = (b"appended", b"duplicate")
_CLAIMS = {load_script("streamlease.registry", name).digest for name in ("claim", "take_over")}
_LOG_APPEND = load_script("streamlease.streams.log", "append").digest
_APPEND = load_script("streamlease.leader", "journal_append").digest
_SNAPSHOT = load_script("streamlease.leader", "journal_snapshot").digest
_MERGE = load_script("streamlease.streams.log", "merge").digest
_COMMIT = load_script("streamlease.registry", "commit").digest

Id = tuple[int, int]
Spaces = dict[str, Space]


@dataclass(frozen=True)
class Entry:
    """One entry of the journal."""

    id: Id
    term: int
    number: int
    payload: bytes


def _id(text: bytes) -> Id:
    first, _, second = text.partition(b"-")
    return int(first), int(second)


class Observed:
    """Reads the keys of one group without any command, and hears of each script that ran."""

    def __init__(self, server: MemoryServer, group: str) -> None:
        self.server = server
        self.group = group
        self._dead = f"dead/{group}/".encode()
        self.on_commit: Callable[[str, Entry], None]
        self.on_snapshot: Callable[[str], None]
        self.on_claim: Callable[[str, int], None]
        self.on_direct: Callable[[str, int, int], None]
        self.dead: set[tuple[str, int]] = set()
        """Stream and offset of each message that was ever written among the dead letters."""
        self.merged = 0
        """How often entries of a log were replaced by one."""
        self._read: tuple[bytes | None, Spaces, dict[str, tuple[str, ...]]] = (None, {}, {})
        server.observers.append(self._ran)

    def _ask(self, *command: str | bytes) -> Any:
        return self.server.execute([part.encode() if isinstance(part, str) else part for part in command])

    # ------------------------------------------------------------ scripts

    def _ran(self, digest: str, names: Sequence[bytes], args: Sequence[bytes], reply: Any) -> None:
        if digest in _CLAIMS and reply[0] == 1 and names[0] == keys.leader(self.group).encode():
            self.on_claim(args[0].decode(), int(reply[1]))
        elif digest == _APPEND and reply[0] == 1 and names[1] == keys.journal(self.group).encode():
            ((id, fields),) = self._ask("XREVRANGE", names[1], "+", "-", "COUNT", "1")
            assert id == reply[1], "the reply of an append names the newest entry"
            entry = _entry(id, fields)
            if (entry.term, entry.number) == (int(args[1]), int(args[2])):
                self.on_commit(args[0].decode(), entry)
        elif digest == _COMMIT and names[1] == keys.progress(self.group).encode():
            for place, stands in enumerate(reply[1:]):
                if stands:
                    stream, lease_epoch, offset = args[3 * place : 3 * place + 3]
                    self.on_direct(stream.decode(), int(lease_epoch), int(offset))
        elif digest == _LOG_APPEND and reply[0] in _DONE and args[0].startswith(self._dead):
            self.dead.add((args[0].removeprefix(self._dead).decode(), int(args[2])))
        elif digest == _MERGE and reply[0] == b"merged":
            self.merged += 1
        elif digest == _SNAPSHOT and reply[0] == 1 and names[1] == keys.journal(self.group).encode():
            self.on_snapshot(args[0].decode())

    # ------------------------------------------------------------ keys

    def committed(self, stream: str) -> int:
        """How far a stream is, whoever committed it."""
        return int(self._ask("HGET", keys.progress(self.group), stream) or 0)

    def beside(self) -> dict[str, tuple[int, str]]:
        """What stands beside the journal: how far each stream is, and under which lease it is committed."""
        progress, leases = (
            dict(zip(found[::2], found[1::2], strict=True))
            for found in (self._ask("HGETALL", key(self.group)) for key in (keys.progress, keys.leases))
        )
        return {
            stream.decode(): (int(progress[stream]), lease.decode())
            for stream, lease in leases.items()
            if not stream.startswith(b"@")
        }

    @property
    def record(self) -> LeaderRecord:
        """Who leads."""
        fields = self._ask(*map(str, leadership.record_command(self.group)))
        record = leadership.parse_record(self.group, fields, self.server.now())
        if record.pulse is None:
            return record
        return record.kept_by(
            pulses.times_of(record.pulse.tag, self._ask(*map(str, pulses.all_with(record.pulse.tag))))
        )

    @property
    def record_lineage(self) -> str:
        """Of which lineage of the data the term is."""
        return (self._ask("HGET", keys.leader(self.group), "lineage") or b"").decode()

    @property
    def incarnation(self) -> str:
        """The lineage of the data."""
        return self.server.lineage

    @property
    def kept(self) -> tuple[Id, bytes, int, int] | None:
        """The snapshot: id, state, term and number of the last commit in it."""
        id, state, term, number = self._ask("HMGET", keys.snapshot(self.group), "id", "state", "t", "n")
        return None if id is None else (_id(id), state, int(term), int(number))

    @property
    def journal(self) -> list[Entry]:
        """All entries of the journal."""
        return [_entry(id, fields) for id, fields in self._ask("XRANGE", keys.journal(self.group), "-", "+")]

    @property
    def journal_length(self) -> int:
        """How many entries it has."""
        return int(self._ask("XLEN", keys.journal(self.group)))

    def journal_after(self, id: Id) -> list[Entry]:
        """Those behind `id`."""
        return [entry for entry in self.journal if entry.id > id]

    def replay(self) -> GroupState:
        """What the journal says: the snapshot, and what follows it; see `leader/journal.py`."""
        kept = self.kept
        state, last = GroupState(), (0, 0)
        if kept is not None:
            state, last = GroupState.restore(kept[1]), (kept[2], kept[3])
        for entry in self.journal_after(kept[0] if kept is not None else (0, 0)):
            number = (entry.term, entry.number)
            if number > last:
                last = number
                for record in decode_records(entry.payload):
                    state.apply(record)
        return state

    def _definitions(self) -> tuple[Spaces, dict[str, tuple[str, ...]]]:
        version = self._ask("GET", "sl:{spaces}:version")
        if version != self._read[0]:
            known = read_definitions(self._ask("HGETALL", "sl:{spaces}:defs")).spaces
            spaces = {name: space for name, space in known.items() if name != DEAD_LETTERS}
            order: dict[str, tuple[str, ...]] = {}
            for space in spaces.values():
                order |= {str(s): tuple(map(str, before)) for s, before in space.predecessors().items()}
            self._read = (version, spaces, order)
        return self._read[1:]

    @property
    def spaces(self) -> Spaces:
        """The spaces of the group, by name."""
        return self._definitions()[0]

    @property
    def order(self) -> dict[str, tuple[str, ...]]:
        """Stream -> those of the generation before that may share a key with it."""
        return self._definitions()[1]

    # ------------------------------------------------------------ how much there is

    def mailboxes(self) -> dict[str, int]:
        """How many letters lie in each mailbox."""
        names = [name for name in self.server.keys.names() if name.startswith(b"sl:{m:")]
        return {name.decode(): int(self._ask("XLEN", name)) for name in names if name.endswith(b":in")}

    @property
    def size(self) -> int:
        """How many keys there are."""
        return len(self.server.keys.names())

    # ------------------------------------------------------------ streams

    def _meta(self, stream: str) -> tuple[int, str]:
        next, state = self._ask("HMGET", stream_meta(StreamId.parse(stream)), "next", "state")
        return int(next or 0), (state or b"").decode()

    @property
    def streams(self) -> dict[str, int]:
        """Stream -> its next offset."""
        return {stream: self._meta(stream)[0] for stream in self.order}

    @property
    def sealed(self) -> set[str]:
        """The streams that take no more."""
        return {stream for stream in self.order if self._meta(stream)[1] == "sealed"}


def _entry(id: bytes, fields: list[bytes]) -> Entry:
    found = dict(zip(fields[::2], fields[1::2], strict=True))
    return Entry(_id(id), int(found[b"t"]), int(found[b"n"]), found[b"r"])
