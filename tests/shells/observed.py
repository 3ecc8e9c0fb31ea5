"""What stands in the in-memory server, in the words of the judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from streamlease.leader.core.group_state import GroupState
from streamlease.protocol.ids import StreamId
from streamlease.registry import keys
from streamlease.registry.leadership import LeaderRecord
from streamlease.streams.log.keys import stream_meta
from streamlease.streams.redis.scripts import load_script
from streamlease.streams.spaces.definitions import Space
from streamlease.streams.spaces.known import read_definitions
from streamlease.testing.memory_server import MemoryServer
from tests.simulation.store import Entry, replayed

SPACE = "s"
_CLAIMS = {load_script("streamlease.registry", name).digest for name in ("claim", "take_over")}
_APPEND = load_script("streamlease.leader", "journal_append").digest
_SNAPSHOT = load_script("streamlease.leader", "journal_snapshot").digest

Id = tuple[int, int]


def _id(text: bytes) -> Id:
    first, _, second = text.partition(b"-")
    return int(first), int(second)


class Observed:
    """Reads the keys of one group without any command, and hears of each script that ran."""

    def __init__(self, server: MemoryServer, group: str) -> None:
        self.server = server
        self.group = group
        self.on_commit: Callable[[str, Entry], None]
        self.on_snapshot: Callable[[str], None]
        self.on_claim: Callable[[str, int], None]
        self.boxes: dict[str, Any] = {}
        self.dead: dict[tuple[str, int], int] = {}
        self.space = self
        self._read: tuple[bytes | None, Space | None, dict[str, tuple[str, ...]]] = (None, None, {})
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
        elif digest == _SNAPSHOT and reply[0] == 1 and names[1] == keys.journal(self.group).encode():
            self.on_snapshot(args[0].decode())

    # ------------------------------------------------------------ keys

    @property
    def record(self) -> LeaderRecord:
        """Who leads."""
        names = ("term", "host", "mailbox", "renewed_at", "ttl")
        term, host, mailbox, renewed_at, ttl = self._ask("HMGET", keys.leader(self.group), *names)
        return LeaderRecord(
            term=int(term or 0),
            host=(host or b"").decode(),
            mailbox=(mailbox or b"").decode(),
            renewed_at=int(renewed_at or 0),
            ttl=int(ttl or 0),
            read_at=self.server.now(),
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
        """What the journal says."""
        kept = self.kept
        return replayed(kept, self.journal_after(kept[0] if kept is not None else (0, 0)))

    def _definition(self) -> tuple[Space | None, dict[str, tuple[str, ...]]]:
        version = self._ask("GET", "sl:{spaces}:version")
        if version != self._read[0]:
            space = read_definitions(self._ask("HGETALL", "sl:{spaces}:defs")).spaces.get(SPACE)
            order: dict[str, tuple[str, ...]] = {}
            if space is not None:
                order = {str(s): tuple(map(str, before)) for s, before in space.predecessors().items()}
            self._read = (version, space, order)
        return self._read[1:]

    @property
    def definition(self) -> Space | None:
        """The space of the group."""
        return self._definition()[0]

    @property
    def order(self) -> dict[str, tuple[str, ...]]:
        """Stream -> those of the generation before that may share a key with it."""
        return self._definition()[1]

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
