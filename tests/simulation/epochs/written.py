"""What stands in the server: every message of every stream and each boundary, as they are written.

It reads the keys right behind each script that may have changed them, so retention removes nothing that it
has not seen. A failover takes away what was lost; how things stood before is kept, for somebody may be
reading it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from streamlease.protocol.epochs.antichains import Antichain, is_open
from streamlease.protocol.epochs.order import Epoch, at_most, bottom
from streamlease.protocol.ids import StreamId
from streamlease.streams.collections.core.multiset import Item
from streamlease.streams.entries.decoding import decode_entries
from streamlease.streams.epochs import keys
from streamlease.streams.epochs.core.boundaries import Boundary
from streamlease.streams.log.keys import stream_log, stream_meta
from streamlease.streams.redis.scripts import load_script
from streamlease.testing.memory.memory_server import MemoryServer
from tests.simulation.judge import Violation

TEXT = "n"
"""The header that says which message it is."""

COLUMNS = frozenset({"key", "payload", "diff", "offset", "headers", "epoch"})

WRITES = {
    load_script(f"streamlease.{room}", name).digest
    for room, name in (("streams.log", "append"), ("streams.log", "append_many"), ("streams.epochs", "move"))
}
RECORD = load_script("streamlease.streams.epochs", "record").digest
ENTER = load_script("streamlease.streams.epochs", "enter").digest

Ends = Mapping[str, int]


class Stood(NamedTuple):
    """One message, where it stands."""

    text: str
    epoch: Epoch | None
    item: Item
    diff: int


@dataclass
class History:
    """All that was ever written and not lost."""

    dimensions: int
    streams: dict[str, dict[int, Stood]] = field(default_factory=dict)
    """By stream and offset. What Redis lost leaves a hole."""
    ends: dict[str, int] = field(default_factory=dict)
    bounds: dict[int, tuple[Antichain, dict[str, int]]] = field(default_factory=dict)
    """Of each boundary the lower frontier, and where the streams end that have messages."""
    lost: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Of boundaries: of how many parts something was lost while they were staged, and how many messages."""
    lacking: dict[int, set[tuple[str, Epoch]]] = field(default_factory=dict)
    """Of boundaries: in which stream which epoch lacks what was lost."""
    gaps: dict[int, dict[tuple[str, int], int]] = field(default_factory=dict)
    """Of boundaries: stream and first offset of each range among its messages that has none -> its end."""

    @property
    def boundary(self) -> int:
        """The number of the newest boundary."""
        return max(self.bounds, default=0)

    def of_epoch(self, epoch: Epoch) -> list[str]:
        """The messages of an epoch, in order of their texts."""
        return sorted(one.text for log in self.streams.values() for one in log.values() if one.epoch == epoch)

    def epochs(self) -> dict[Epoch, list[str]]:
        """The messages of all completed epochs."""
        found: dict[Epoch, list[str]] = {}
        for log in self.streams.values():
            for one in log.values():
                if one.epoch is not None:
                    found.setdefault(one.epoch, []).append(one.text)
        lower = self.lower
        return {epoch: sorted(texts) for epoch, texts in found.items() if not is_open(lower, epoch)}

    @property
    def lower(self) -> Antichain:
        """The lower frontier at the newest boundary."""
        return self.bounds[self.boundary][0] if self.bounds else (bottom(self.dimensions or 1),)

    def multiset(self, ends: Ends) -> dict[Item, int]:
        """What all changes below `ends` come to."""
        counts: Counter[Item] = Counter()
        for stream, end in ends.items():
            for offset, one in self.streams.get(stream, {}).items():
                if offset < end:
                    counts[one.item] += one.diff
        return {item: count for item, count in counts.items() if count}

    def copy(self) -> History:
        """As it is now, for ever."""
        logs = {stream: dict(log) for stream, log in self.streams.items()}
        more = dict(self.ends), dict(self.bounds), dict(self.lost), dict(self.lacking), dict(self.gaps)
        return History(self.dimensions, logs, *more)


class Written:
    """Hears of each script that ran."""

    def __init__(self, server: MemoryServer, space: str, dimensions: int) -> None:
        self.now = History(dimensions)
        self.former: list[History] = []
        """How things stood before each failover that lost something."""
        self.came: Callable[[Stood], None]
        """Is told of each message that came."""
        self.texts: dict[str, tuple[str, int]] = {}
        """Where each message stands."""
        self._server = server
        self._space = space
        self._began = f"sl:{{{space}.".encode()
        self._newest: dict[tuple[str, Epoch | None, tuple[str, bytes | None]], int] = {}
        self._orders: dict[str, set[Epoch]] = {}
        self._issued: dict[tuple[bytes, int], bytes] = {}
        """To whose token each incarnation of a name was given, also before failovers."""
        server.observers.append(self._ran)

    def _asked(self, *command: str | bytes) -> Any:
        return self._server.execute([part.encode() if isinstance(part, str) else part for part in command])

    def _ran(self, digest: str, names: Sequence[bytes], args: Sequence[bytes], reply: Any) -> None:
        if digest in WRITES:
            for name in names:
                if name.startswith(self._began) and name.endswith(b"}:log"):
                    self._wrote(StreamId.parse(name[4:-5].decode()))
        elif digest == ENTER and reply[0] == b"entered" and names[0] == keys.writers(self._space).encode():
            name, token = args[:2]
            if self._issued.setdefault((name, reply[1]), token) != token:
                raise Violation(f"[13] incarnation {reply[1]} of publisher {name.decode()} is issued twice")
        elif digest == RECORD and reply[0] == b"recorded" and names[0] == keys.state(self._space).encode():
            self._recorded(int(args[1]), Boundary.parse(int(args[1]), args[2]))

    def _wrote(self, stream: StreamId) -> None:
        name, known = str(stream), self.now.ends.get(str(stream), 0)
        end = int(self._asked("HGET", stream_meta(stream), "next") or 0)
        if end <= known:
            return
        self.now.ends[name] = end
        log = self.now.streams.setdefault(name, {})
        entries = self._asked("XRANGE", stream_log(stream), f"{known}-0", "+")
        for batch in decode_entries(stream, entries, columns=COLUMNS):
            for row in batch.to_pylist():
                text = next(one["value"].decode() for one in row["headers"] if one["key"] == TEXT)
                epoch = None if row["epoch"] is None else tuple(row["epoch"])
                item = row["topic"], row["key"], row["payload"]
                one = Stood(text, epoch, item, row["diff"] if row["diff"] is not None else 1)
                self._came(name, row["offset"], one)
                log[row["offset"]] = one

    def _came(self, stream: str, offset: int, one: Stood) -> None:
        if one.text in self.texts:
            raise Violation(f"{one.text} stands at {self.texts[one.text]}, and again at {stream} {offset}")
        self.texts[one.text] = stream, offset
        self.came(one)
        if one.epoch is not None:
            if self.now.bounds and not is_open(self.now.lower, one.epoch):
                raise Violation(f"[13] {one.text} comes into epoch {one.epoch}, which was completed")
            epochs = self._orders.setdefault(stream, set())
            later = [other for other in epochs if at_most(one.epoch, other) and other != one.epoch]
            if later:
                raise Violation(f"[13] {one.text} of epoch {one.epoch} stands behind {later[0]} in {stream}")
            epochs.add(one.epoch)
        sender, number = one.text.split(" ")[:2]
        of = sender, one.epoch, one.item[:2]
        if int(number) < self._newest.get(of, -1):
            raise Violation(f"[6] {one.text} stands behind number {self._newest[of]} of {one.item[:2]}")
        self._newest[of] = int(number)

    def _recorded(self, number: int, bound: Boundary) -> None:
        if number in self.now.bounds:
            return
        if number != self.now.boundary + 1 and self.now.bounds:
            raise Violation(f"[13] boundary {number} is recorded behind {self.now.boundary}")
        before = self.now.bounds[self.now.boundary][1] if self.now.bounds else {}
        ends = before | {str(stream): end for stream, end in bound.ends.items()}
        self.now.bounds[number] = bound.lower, ends
        self.now.lost[number] = sum(part.lost > 0 for part in bound.moved), bound.lost
        self.now.lacking[number] = {(str(part.stream), part.epoch) for part in bound.moved if part.lost}
        gaps = {(str(stream), first): to for stream, some in bound.gaps.items() for first, to in some}
        self.now.gaps[number] = gaps
        for (stream, first), to in gaps.items():
            if there := self.now.streams.get(stream, {}).keys() & {*range(first, to)}:
                raise Violation(f"[13] boundary {number} says that {stream} has nothing at {sorted(there)}")

    def failed_over(self) -> None:
        """What the server does not have any more is gone."""
        self.former.append(self.now)
        self.now = now = self.now.copy()
        boundary = int(self._asked("HGET", keys.state(self._space), "boundary") or 0)
        for number in [one for one in now.bounds if one > boundary]:
            del now.bounds[number], now.lost[number], now.lacking[number], now.gaps[number]
        self._newest.clear()
        self._orders.clear()
        self.texts.clear()
        for name, log in now.streams.items():
            end = int(self._asked("HGET", stream_meta(StreamId.parse(name)), "next") or 0)
            now.ends[name] = end
            for offset in [one for one in log if one >= end]:
                del log[offset]
            self.texts |= {one.text: (name, offset) for offset, one in log.items()}
            self._orders[name] = {one.epoch for one in log.values() if one.epoch is not None}

    @property
    def histories(self) -> list[History]:
        """As it is, and as it was for whoever read before a failover."""
        return [self.now, *self.former]
