"""Up to where streams are read, and how what was read is divided into what is handed out.

`AsItCame` hands out what each read brought; ``agent.epochs.epoch_parts`` whole epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

from streamlease.agent.batch import BatchRows, OfEpoch
from streamlease.borrower.book import ConsumerBook, Held
from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.streams.log.ranges import FIRST_COUNT
from streamlease.streams.rows.few_messages import StreamRows
from streamlease.streams.tasks import Supervisor

ALL = 1 << 62
"""As many messages in a batch as there are."""


FIRST_ENTRIES = 2
"""So many entries of a stream are read first: nobody knows yet how large they are, and somebody waits."""

FEW = 64
"""So few messages of a stream are read in one step, however few are in each entry."""


@lru_cache(maxsize=65_536)
def stream_of(name: str) -> StreamId:
    """The stream of that name, which is asked for again and again."""
    return StreamId.parse(name)


class News(NamedTuple):
    """A stream in which there is something to read: ``start <= offset < end``."""

    stream: StreamId
    held: Held
    start: int
    end: int | None
    """None: nobody knows yet where the stream ends, and it may end at `start`."""
    began: int = 0
    """When the reading began, in ns since 1970."""

    @property
    def is_read(self) -> bool:
        """Whether it is to be read."""
        return self.end is None or self.start < self.end

    @property
    def messages(self) -> int:
        """How many there are; a few where nobody knows."""
        return FEW if self.end is None else self.end - self.start

    @property
    def entries(self) -> int:
        """How many entries are read at first."""
        return self.held.entries or (FIRST_COUNT if self.messages <= FEW else FIRST_ENTRIES)

    def ends_behind(self, offset: int) -> bool:
        """Whether the stream had more from `offset` on."""
        return self.end is not None and offset < self.end


class UsualEntries:
    """How many entries streams had in the last round: for those of which none was read yet."""

    def __init__(self) -> None:
        self._most = 0
        """So many at most; no more than each of them would be asked for."""

    def saw(self, read: Sequence[tuple[int, int]]) -> None:
        """Of each stream, how many entries were read, and how many it would be asked for next."""
        some = [one for one in read if one[0]]
        if some:
            brought, next = zip(*some, strict=True)
            self._most = min(max(brought), *next)

    def asked(self, one: News) -> int:
        """How many entries a stream is asked for at first.

        What others had is no promise: its own may be large. So who asks for more than it would without
        knowing theirs asks fewer streams at a time, and for no more entries.
        """
        return one.held.entries or max(one.entries, min(self._most, one.messages))


class Divided(NamedTuple):
    """The offsets ``start <= offset < end`` of a stream, to be handed out together."""

    start: int
    end: int
    rows: BatchRows | None
    """None: nothing there is for the program."""
    size: int = 0
    """In bytes, as expanded."""
    of: OfEpoch | None = None


class Dividing(Protocol):
    """How the streams of one consumer are read and handed out."""

    most: int
    """Most messages of a batch that is handed out."""

    def next_of(self, stream: StreamId) -> int | None:
        """Up to where a stream may be read; None while that is not known. Below what was read of it: Redis
        has lost that.
        """
        ...

    def may_begin(self, held: Held) -> bool:
        """Whether there is room for something of this stream."""
        ...

    async def strange(self, streams: Collection[StreamId]) -> Collection[StreamId]:
        """Those of `streams`, which were just read, in which something else may stand than was to be read."""
        ...

    def pieces(
        self, held: Held, stream: StreamId, start: int, rows: StreamRows, size: int
    ) -> Iterable[Divided]:
        """What can be handed out now that `rows`, from offset `start` on, were read."""
        ...

    def hole(self, held: Held, stream: StreamId, start: int, end: int) -> Iterable[Divided]:
        """The same, now that it is known that Redis lost these offsets."""
        ...

    def stopped(self, held: Held) -> Iterable[Divided]:
        """What is to be handed out of a stream before what stands next in it, which cannot be decoded."""
        ...

    def went_to(self, held: Held) -> None:
        """The stream was granted, or is read again from an earlier position, or may not come back."""
        ...

    def gone(self, held: Held) -> None:
        """The stream is given back."""
        ...

    def handed_out(self, held: Held, of: OfEpoch | None = None) -> None:
        """More of the stream was handed out, `of` an epoch, or passed over."""
        ...


class Ends(Protocol):
    """Knows where streams end."""

    def next_of(self, stream: StreamId) -> int | None:
        """The offset that the next message of a stream will get."""
        ...


class ConsumerSide(NamedTuple):
    """What a `Dividing` may know and do of its consumer."""

    ends: Ends
    book: ConsumerBook
    tasks: Supervisor
    heard: Callable[[StreamId, int | None], None]
    """There may be more to read of a stream."""
    arrived: Callable[[], None]
    """There may be something to hand out."""
    restart: Callable[[Held], None]
    """A stream is to be read again from what was handed out."""
    refuse: Callable[[StreamleaseError], None]
    """Nothing can be read any more."""


Divide = Callable[[ConsumerSide], Dividing]


class AsItCame:
    """Streams are read to their ends, and each read is a batch.

    Args:
        filter: whose messages are wanted.
        most: most messages of a batch.
    """

    def __init__(self, ends: Ends, filter: str, most: int) -> None:
        self.most = most
        self._filter = filter
        self.next_of = ends.next_of

    def may_begin(self, held: Held) -> bool:
        """What waits is bounded by those who read."""
        return True

    async def strange(self, streams: Collection[StreamId]) -> Collection[StreamId]:
        """Whatever stands there is wanted."""
        return ()

    def pieces(
        self, held: Held, stream: StreamId, start: int, rows: StreamRows, size: int
    ) -> Iterable[Divided]:
        """All of it."""
        return (Divided(start, start + len(rows), rows.filtered(self._filter) or None, size),)

    def hole(self, held: Held, stream: StreamId, start: int, end: int) -> Iterable[Divided]:
        """It is passed over."""
        return (Divided(start, end, None),)

    def stopped(self, held: Held) -> Iterable[Divided]:
        """Nothing is kept back."""
        return ()

    def went_to(self, held: Held) -> None:
        """Each read stands for itself."""

    def gone(self, held: Held) -> None:
        """The same."""

    def handed_out(self, held: Held, of: OfEpoch | None = None) -> None:
        """The same."""
