"""Who reads in a world of epochs: whole epochs, what is staged, streams as they are, and collections."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from streamlease.agent.client import Client
from streamlease.agent.collections.catalog_messages import CatalogMessages
from streamlease.agent.collections.collection import Collection
from streamlease.agent.epochs.epoch_items import Aborted, EpochBatch, Frontier, Snapshot
from streamlease.agent.plain.listening import PlainSubscription
from streamlease.protocol.epochs.antichains import Antichain, goes_on
from streamlease.protocol.errors import EpochsTruncated, HistoryTruncated, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.streams.collections.core.multiset import Change, Item
from streamlease.streams.collections.snapshots import SnapshotGone
from streamlease.streams.entries.delivered import Message
from streamlease.streams.epochs.boundary_reading import EpochsLost, PartsLost
from streamlease.streams.log.state import MissingOffsets
from streamlease.streams.log.times import BeyondTheEnd
from streamlease.testing.memory.memory_connection import connect
from tests.simulation.epochs.actors import FILTER, UNANSWERED, Actor
from tests.simulation.epochs.early import EarlyChain
from tests.simulation.epochs.truth import Chain
from tests.simulation.epochs.written import TEXT, Stood
from tests.simulation.judge import Violation

if TYPE_CHECKING:
    from tests.simulation.epochs.world import EpochWorld

TRUNCATED = (HistoryTruncated, EpochsTruncated)
BETWEEN = 0.3
"""Seconds before a reader tries again."""


def text_of(message: Message) -> str:
    """Which message it is."""
    return next(value.decode() for name, value in message.headers if name == TEXT)


class AnyReader(Actor):
    """Reads, and begins anew when it cannot go on."""

    ends_with_restarts = False
    """Whether it may be told that Redis lost something when it was only restarted, or lost nothing."""

    async def run(self) -> None:
        world = self.world
        client = connect(world.server, self.line, embedded=False)
        while True:
            try:
                await self.read(client)
            except UNANSWERED:
                world.sometimes["a reader begins anew"] += 1
                self.again()
            except (*TRUNCATED, EpochsLost, SnapshotGone, MissingOffsets, BeyondTheEnd) as error:
                self.excuse(error)
                self.anew()
            await asyncio.sleep(BETWEEN)

    def excuse(self, error: StreamleaseError) -> None:
        """Whether it may be told that."""
        world = self.world
        what = type(error).__name__
        happened = world.sometimes["a restart of the store"] + world.sometimes["a failover"]
        restarted = self.ends_with_restarts and happened > 0
        excused = {
            HistoryTruncated: world.forgets, EpochsTruncated: world.forgets, SnapshotGone: world.forgets,
            EpochsLost: bool(world.written.former) or restarted, MissingOffsets: bool(world.written.former),
            PartsLost: bool(world.written.former), BeyondTheEnd: bool(world.written.former),
        }  # fmt: skip
        if not excused[type(error)]:
            raise Violation(f"{self.name} is told what did not happen: {what}: {error}")
        world.sometimes[f"a reader is told {what}"] += 1

    async def read(self, client: Client) -> None:
        """Read as long as that goes well."""
        raise NotImplementedError

    def again(self) -> None:
        """Redis did not answer: it goes on where it was."""

    def anew(self) -> None:
        """What it knew is not so any more."""

    def lost(self) -> None:
        """A failover may have lost what it read."""

    @property
    def trouble(self) -> str:
        """What it still lacks; empty: nothing."""
        raise NotImplementedError

    def ended(self) -> None:
        """It was handed out all that there is."""


class Reader(AnyReader):
    """Reads whole epochs, on its own or where another one was."""

    kind = "reader"

    def __init__(self, world: EpochWorld, former: Reader | None = None) -> None:
        self.chain = former.chain if former is not None else Chain("")
        self._begin = self.chain.back()
        super().__init__(world)
        self.chain.name = self.name

    def again(self) -> None:
        self._begin = self.chain.back()

    def anew(self) -> None:
        self.chain.anew()
        self._begin = {}

    def lost(self) -> None:
        self.chain.is_suspect = True

    async def read(self, client: Client) -> None:
        async with client.listen(FILTER, start=self._begin or "earliest", epochs="atomic") as items:
            self.chain.keep(items.positions)
            while True:
                try:
                    self._take(await anext(items))
                except MissingOffsets as loss:
                    self.excuse(loss)
                    if isinstance(loss, PartsLost):
                        self.chain.losses.add(str(loss))
                self.chain.keep(items.positions)

    def _take(self, item: object) -> None:
        truth = self.world.truth
        match item:
            case Snapshot(lower=lower) | Frontier(lower=lower):
                # Retention may have moved the earliest, and that is told first.
                truth.frontier(self.chain, lower, begins=self.world.forgets and not self.chain.handed)
            case EpochBatch(epoch=epoch):
                truth.epoch(self.chain, epoch, sorted(map(text_of, item.messages)))
            case _:
                raise Violation(f"{self.name} is handed out {item!r}")

    @property
    def trouble(self) -> str:
        there = {stream: end for stream, end in self.chain.kept[0].items() if end}
        # Not where streams end: offsets behind the newest boundary may be out of use.
        ends = {stream: end for stream, end in self.world.ends_at_newest.items() if end}
        return "" if there == ends else f"{self.name} is at {there} of {ends}"

    def ended(self) -> None:
        self.world.truth.ended(self.chain)


class EagerReader(AnyReader):
    """Reads what is staged."""

    kind = "eager"
    ends_with_restarts = True

    def __init__(self, world: EpochWorld, former: Reader | None = None) -> None:
        """Begin where a reader of whole epochs was, or at the earliest or the latest."""
        self._start: dict[str, int] | str = world.random.choice(("earliest", "latest"))
        if former is not None and not former.chain.is_suspect and former.chain.kept[0]:
            self._start = former.chain.kept[0]
        self.chain = EarlyChain("", world.truth)
        super().__init__(world)

    def again(self) -> None:
        if not isinstance(self._start, str):
            self._start = "earliest"

    anew = again

    def lost(self) -> None:
        self.again()

    async def read(self, client: Client) -> None:
        late = self._start == "latest"
        self.chain = chain = EarlyChain(self.name, self.world.truth)
        async with client.listen(FILTER, start=self._start, epochs="eager") as items:  # type: ignore[arg-type]
            while True:
                try:
                    item = await anext(items)
                except MissingOffsets as loss:
                    self.excuse(loss)
                    chain.has_losses = True
                    continue
                match item:
                    case Snapshot(lower=lower, upper=upper):
                        chain.begins(lower, upper if late else ())
                    case Frontier(lower=lower):
                        chain.frontier(lower, begins=self.world.forgets and not chain.handed)
                    case EpochBatch(epoch=epoch, publisher=str(name), incarnation=int(inc)):
                        offsets = {message.offset for message in item.messages}
                        if offsets != {-1}:
                            raise Violation(f"{self.name} is told offsets {offsets} of what is staged")
                        chain.batch(epoch, name, inc, [*map(text_of, item.messages)])
                    case Aborted(publisher=name, incarnation=inc, epochs=epochs):
                        self.world.sometimes["an eager reader is told an abort"] += 1
                        self.world.sometimes["an abort takes something back"] += chain.aborted(
                            name, inc, epochs
                        )
                    case _:
                        raise Violation(f"{self.name} is handed out {item!r}")

    @property
    def trouble(self) -> str:
        lower = self.world.written.now.lower
        return "" if self.chain.lower == lower else f"{self.name} is at {self.chain.lower} of {lower}"

    def ended(self) -> None:
        self.chain.ended()


class OffReader(AnyReader):
    """Reads each stream as it is."""

    kind = "off"

    def __init__(self, world: EpochWorld) -> None:
        self._at: dict[str, int] = {}
        self._untouched: set[str] = set()
        """Until something of a stream was read, its earliest message is the one that is still there."""
        self._open: PlainSubscription | CatalogMessages | None = None
        super().__init__(world)

    def anew(self) -> None:
        self._at = {}

    def lost(self) -> None:
        # Nobody tells a plain reader that others have written where it had read (docs/redis.md).
        self.world.crash(self.process)

    async def read(self, client: Client) -> None:
        written = self.world.written
        new = not self._at
        async with client.listen(FILTER, start=self._at or "earliest") as batches:
            self._at = self._at or batches.positions
            self._open, self._untouched = batches, {*self._at} if new else set()
            try:
                async for batch in batches:
                    stream = str(batch.stream)
                    if batch.start != self._at.get(stream, batch.start) and stream not in self._untouched:
                        at = self._at[stream]
                        raise Violation(f"{self.name} is at {at} in {stream} and gets {batch.start}")
                    self._untouched.discard(stream)
                    found = [(one.offset, text_of(one)) for one in batch.messages]
                    log = written.now.streams.get(stream, {})
                    there = [(at, log[at].text) for at in range(batch.start, batch.end) if at in log]
                    if found != there:
                        raise Violation(f"{self.name} gets {found} and not {there} from {stream}")
                    self._at[stream] = batch.end
            except MissingOffsets as loss:
                self.excuse(loss)
                self._at[loss.stream] = loss.oldest

    @property
    def trouble(self) -> str:
        nothing = self._open.positions if self._open is not None else {}
        at = self._at | {stream: nothing.get(stream, 0) for stream in self._untouched}
        there = {stream: end for stream, end in at.items() if end}
        # Not where what was written ends: offsets behind that may be out of use, since a consumer of a group
        # had read there what Redis lost then.
        streams = {*self._at, *self.world.written.now.ends}
        ends = {stream: end for stream in streams if (end := self.world.next_of(stream))}
        return "" if there == ends else f"{self.name} is at {there} of {ends}"


class CollectionReader(AnyReader):
    """Reads a multiset, and then its changes; on its own or where another one was."""

    kind = "items"

    def __init__(self, world: EpochWorld, former: CollectionReader | None = None) -> None:
        self._at: dict[str, int] = dict(former._at) if former is not None and not former.is_suspect else {}
        self._items = Counter(former._items) if self._at and former is not None else Counter()
        self._since: list[Change] = []
        """Changes behind `_at`."""
        self._open: Collection | None = None
        self._lower: Antichain | None = None
        """The frontier that it said last."""
        self.is_suspect = False
        super().__init__(world)

    def anew(self) -> None:
        self._at, self._items, self._since, self.is_suspect = {}, Counter(), [], False
        self._open = self._lower = None

    def again(self) -> None:
        self._since, self._open = [], None
        if self.is_suspect:
            self.anew()

    def lost(self) -> None:
        self.is_suspect = True
        if not self.world.dimensions:
            self.world.crash(self.process)

    async def read(self, client: Client) -> None:
        async with client.collection(FILTER, start=self._at or None) as prices:
            self._open = prices
            if not self._at:
                self._begins(prices)
            while True:
                try:
                    change = await anext(prices)
                except MissingOffsets as loss:
                    self.excuse(loss)
                    continue
                if self.world.dimensions:
                    self._reached(prices)
                    self._since.append(change)
                else:
                    self._since.append(change)
                    self._reached(prices)

    def _begins(self, prices: Collection) -> None:
        self._at, self._since = prices.positions, []
        self._items = Counter(prices.items)
        world = self.world
        if prices.items not in [history.multiset(self._at) for history in world.written.histories]:
            there = world.written.now.multiset(self._at)
            raise Violation(f"[14] {self.name} begins with {prices.items} and not {there}")
        self._stands(prices)
        world.sometimes["a late subscriber"] += 1
        world.sometimes["an item stands below 0"] += any(count < 0 for count in prices.items.values())

    def _reached(self, prices: Collection) -> None:
        """All changes up to the positions were handed out: in the order of their keys, each once."""
        positions = prices.positions
        if positions == self._at:
            return
        found = _by_key((change.item, change.diff) for change in self._since)
        expected = [
            _by_key((one.item, one.diff) for one in _between(history.streams, self._at, positions))
            for history in self.world.written.histories
        ]
        if found not in expected:
            raise Violation(f"[14] {self.name} gets {found} up to {positions}, and not {expected[0]}")
        for change in self._since:
            self._items[change.item] += change.diff
        self._at, self._since = positions, []
        self._stands(prices)

    def _stands(self, prices: Collection) -> None:
        """With epochs it is at a boundary, and says so."""
        if not self.world.dimensions:
            return
        bottom = self.world.bottom
        there = {stream: end for stream, end in self._at.items() if end}
        frontiers = [() if there else (bottom,)]
        for history in self.world.written.histories:
            frontiers += [lower for lower, ends in history.bounds.values() if _some(ends) == there]
        frontier = tuple(prices.frontier or ())
        if frontier not in frontiers:
            raise Violation(f"[14] {self.name} is at {there} and says {frontier}: not one of {frontiers}")
        if self._lower is not None and not goes_on(self._lower, frontier):
            raise Violation(f"[13] the frontier of {self.name} goes back from {self._lower} to {frontier}")
        self._lower = frontier

    @property
    def trouble(self) -> str:
        lower = self.world.written.now.lower
        if self.world.dimensions and (self._open is None or tuple(self._open.frontier or ()) != lower):
            says = self._open and self._open.frontier
            return f"{self.name} says that the frontier is {says}, and it is {lower}"
        ends = {stream: end for stream, end in self.world.written.now.ends.items() if end}
        there, missing = self._counts(), self.world.written.now.multiset(ends)
        return "" if there == missing else f"{self.name} has {there} and not {missing}"

    def _counts(self) -> dict[Item, int]:
        counts = Counter(self._items)
        for change in self._since:
            counts[change.item] += change.diff
        return {item: count for item, count in counts.items() if count}


def _some(ends: dict[str, int]) -> dict[str, int]:
    return {stream: end for stream, end in ends.items() if end}


def _by_key(changes: object) -> dict[tuple[str, bytes | None], list[tuple[Item, int]]]:
    found: dict[tuple[str, bytes | None], list[tuple[Item, int]]] = {}
    for item, diff in changes:  # type: ignore[attr-defined]
        found.setdefault(item[:2], []).append((item, diff))
    return found


def _between(streams: dict[str, dict[int, Stood]], begin: dict[str, int], end: dict[str, int]) -> list[Stood]:
    """What stands between two positions, generation by generation."""
    found = []
    for name in sorted(end, key=StreamId.parse):
        log = streams.get(name, {})
        found += [log[at] for at in sorted(log) if begin.get(name, 0) <= at < end[name]]
    return found
