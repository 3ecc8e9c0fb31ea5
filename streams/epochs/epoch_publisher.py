"""Publishing into a space with epochs: what is sent is staged, and counts once its epoch is given up.

Theory of operation. An ordinary publisher stages the messages (``streams.publish``): its parts, of one epoch
each, go to the staged logs of their streams, and it is noted which offsets they got there (``core/unsaid``).
``advance`` waits until all that was sent before is staged, as durably as the space demands. Then it writes a
line (``presence``), which says what the publisher holds from now on, and names what it staged of the epochs
that it gives up. So a line never promises what is not there; and what no line names belongs to no epoch.

::

    enter --line--> here --close--> left: all that it sent completes, as far as nobody else holds it open
                     | \\--an exception, a crash--> silent: the next incarnation, or the time-out, decides
                      `--another incarnation, or given up--> Fenced

Calls of several tasks put their messages into parts one after the other, because a part is of one epoch.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any

import pyarrow as pa

from streamlease.protocol.epochs.antichains import Antichain, checked_frontier, is_open
from streamlease.protocol.epochs.holding import Capabilities
from streamlease.protocol.epochs.order import Epoch, checked_epoch
from streamlease.protocol.errors import Fenced, InvalidInput, StreamleaseError, StreamSealed
from streamlease.protocol.ids import StreamId, check_name
from streamlease.streams.entries.entries import HeadersInput
from streamlease.streams.entries.epoch_fields import Stamp
from streamlease.streams.epochs.core.unsaid import Unsaid
from streamlease.streams.epochs.presence import Presence
from streamlease.streams.epochs.staged_log import StagedLog
from streamlease.streams.publish.epoch_staging import EpochStaging, check_own
from streamlease.streams.publish.inputs import Payload
from streamlease.streams.publish.parts import Placed, PlacedRange
from streamlease.streams.publish.publisher import Publisher
from streamlease.streams.publish.receipts import Receipt, Receipts, all_places
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.spaces.spaces import SpaceStore

DELIVERY_SECONDS = 30.0

EpochInput = int | Sequence[int]
"""An integer where there is one dimension, else as many integers as there are."""


class EpochPublisher:
    """Sends messages of epochs, under a name, to one space. An async context manager, of one event loop.

    Entering gives it what it holds (`frontier`): the epochs that are not completed; or, if the name was there
    before, what that one held. It goes on from there, and sends again what it had not given up.

    Leaving the ``async with`` without an exception waits until all is staged and ends well: what it sent
    completes, as far as no other publisher holds it open. With an exception, or when its client is closed
    first, nothing is given up: the same name may go on, until the time-out of the space (``epochs_timeout``)
    is over; then the space decides.

    Args:
        space: name of the space.
        name: of the publisher, in its space; two processes must not have one.
        spaces: shared lookups of definitions; own ones if None.
        delivery_timeout: seconds for which a part, and a line, is tried.
        keep: called when it has entered, to see that the space has a keeper; None: nobody does.
        options: as of :class:`Publisher`.

    Raises:
        InvalidInput: `name` is none.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        space: str,
        name: str,
        *,
        spaces: SpaceStore | None = None,
        delivery_timeout: float = DELIVERY_SECONDS,
        keep: Callable[[], Awaitable[None]] | None = None,
        **options: Any,
    ) -> None:
        self.space = space
        self.name = check_name("publisher", name)
        self._redis = redis
        self._spaces = spaces or SpaceStore(redis)
        self._timeout = delivery_timeout
        self._keep = keep
        self._options = options
        self._dimensions = 1
        self._presence: Presence | None = None
        self._publisher: Publisher | None = None
        self._capabilities = Capabilities(name, ())
        self._wanted: Antichain | None = None
        """What an advance that is under way leads to: nothing that it gives up is sent any more."""
        self._unsaid = Unsaid()
        self._stamped: Epoch | None = None
        """The epoch of the messages that come in."""
        self._over = False
        self._known: tuple[int, Presence, Publisher] | None = None
        """The epoch that the last message was sent at: another one needs no look at what is held."""
        self._one_call = asyncio.Lock()
        self._one_advance = asyncio.Lock()

    async def __aenter__(self) -> EpochPublisher:
        """Enter the space.

        Raises:
            InvalidInput: the space has no epochs. InvalidOption: an option is not acceptable.
            UnknownSpace: there is no such space. StreamSealed: it takes no more messages.
            Fenced: another process entered under this name at the same time.
            NotDurable, StoreUnavailable, StoreRefused, Indefinite: Redis did not let it.
        """
        if self._presence is not None or self._over:
            raise InvalidInput(
                f"publisher {self.name} was open already, or its client is closed: make a new one"
            )
        space = await self._spaces.get(self.space)
        if not space.epochs:
            raise InvalidInput(
                f"space {self.space} has no epochs, so messages need no publisher with a name: use "
                f"client.publisher(), or streamlease publish without --publisher"
            )
        if space.ended:
            raise StreamSealed(f"space {self.space} is sealed and takes no more messages: use another space")
        self._dimensions = space.epochs
        self._presence = presence = Presence(self._redis, space, self.name, self._timeout)
        staging = EpochStaging(
            self.name, presence, StagedLog(self._redis), lambda found: check_own(space, found), self._staged
        )
        self._publisher = Publisher(
            self._redis,
            spaces=self._spaces,
            delivery_timeout=self._timeout,
            staging=staging,
            **self._options,
        )
        try:
            self._capabilities = Capabilities(self.name, await presence.enter())
            if self._keep is not None:
                await self._keep()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:
            await self._stop()

    @property
    def frontier(self) -> list[Epoch]:
        """What it holds: it may send at each epoch that is at or above one of these."""
        return [*self._capabilities.frontier]

    @property
    def buffered_bytes(self) -> int:
        """How much waits to be staged; see ``Publisher.buffered_bytes``."""
        return self._open()[1].buffered_bytes

    # ------------------------------------------------------------ sending

    async def send(
        self,
        topic: str,
        payload: Payload,
        key: bytes | str | None = None,
        headers: HeadersInput | None = None,
        timestamp: datetime | int | None = None,
        diff: int | None = None,
        *,
        epoch: EpochInput,
    ) -> Placed:
        """Stage one message of `epoch`, and wait until it is staged; its stream, and its offset while staged.

        Which offset it gets in the stream is decided when its epoch completes.

        Raises:
            InvalidEpoch, NotCapable: the epoch is none, or was given up.
            Fenced: another process has this name now, or it was given up.
            InvalidInput: the topic belongs to another space.
            And as ``Publisher.send``.
        """
        receipt = await self.submit(topic, payload, key, headers, timestamp, diff, epoch=epoch)
        with self._fenced():
            return await receipt

    async def submit(
        self,
        topic: str,
        payload: Payload,
        key: bytes | str | None = None,
        headers: HeadersInput | None = None,
        timestamp: datetime | int | None = None,
        diff: int | None = None,
        *,
        epoch: EpochInput,
    ) -> Receipt:
        """Hand over one message of `epoch`, waiting only while the buffer is full; see `send`.

        An error also comes out of the next ``flush``, ``advance`` or ``close``: the receipt may be dropped.
        """
        known = self._known
        if known is not None and type(epoch) is int and epoch == known[0] and not self._one_call.locked():
            known[1].check()
            async with self._one_call:
                return await known[2].submit(topic, payload, key, headers, timestamp, diff)
        async with self._sending(epoch) as publisher:
            return await publisher.submit(topic, payload, key, headers, timestamp, diff)

    async def send_many(
        self,
        topics: str | Sequence[str],
        payloads: Sequence[Payload],
        *,
        epoch: EpochInput,
        keys: Sequence[bytes | str | None] | None = None,
        headers: Sequence[HeadersInput | None] | None = None,
        timestamps: Sequence[datetime | int | None] | None = None,
        diffs: Sequence[int] | None = None,
    ) -> list[PlacedRange]:
        """Stage many messages of `epoch`, given column by column, and wait until they are; see `send`."""
        taken = await self.submit_many(
            topics, payloads, epoch=epoch, keys=keys, headers=headers, timestamps=timestamps, diffs=diffs
        )
        with self._fenced():
            return await all_places(taken)

    async def submit_many(
        self,
        topics: str | Sequence[str],
        payloads: Sequence[Payload],
        *,
        epoch: EpochInput,
        keys: Sequence[bytes | str | None] | None = None,
        headers: Sequence[HeadersInput | None] | None = None,
        timestamps: Sequence[datetime | int | None] | None = None,
        diffs: Sequence[int] | None = None,
    ) -> Receipts:
        """Hand over many messages of `epoch`; see ``Publisher.submit_many``."""
        async with self._sending(epoch) as publisher:
            return await publisher.submit_many(
                topics, payloads, keys=keys, headers=headers, timestamps=timestamps, diffs=diffs
            )

    async def send_batch(self, topic: str, batch: pa.RecordBatch, *, epoch: EpochInput) -> list[PlacedRange]:
        """Stage all rows of a record batch, of `epoch`, and wait until they are staged; see `send`."""
        taken = await self.submit_batch(topic, batch, epoch=epoch)
        with self._fenced():
            return await all_places(taken)

    async def submit_batch(self, topic: str, batch: pa.RecordBatch, *, epoch: EpochInput) -> Receipts:
        """Hand over all rows of a record batch, of `epoch`; see ``Publisher.submit_batch``."""
        async with self._sending(epoch) as publisher:
            return await publisher.submit_batch(topic, batch)

    async def flush(self) -> None:
        """Wait until all that was sent before is staged. Nothing is given up.

        Raises:
            Fenced: another process has this name now, or it was given up.
            StreamleaseError: the first error of a message since the last ``flush`` or ``advance``.
        """
        presence, publisher = self._open()
        with self._fenced():
            await publisher.flush()
        presence.check()

    # ------------------------------------------------------------ giving up

    async def advance(self, frontier: int | Sequence[EpochInput]) -> None:
        """Hold `frontier` from now on: all epochs that are not at or above one of its elements are given up.

        Returns when that, and all that was sent before, is as durable as the space demands.

        Args:
            frontier: epochs of which none is at most another; an integer will do if there is one dimension.

        Raises:
            InvalidEpoch, NotCapable: it is no frontier, or some of it was given up. Nothing is changed.
            Fenced: another process has this name now, or it was given up.
            NotDurable: it is given up, but less durably than the space demands.
            Indefinite: no answer; it is given up, or will be with the next sign of life.
            StreamleaseError: the first error of a message since the last call. Nothing is changed; another
                call goes on without the messages that failed.
        """
        single = isinstance(frontier, int) and not isinstance(frontier, bool)
        wanted = checked_frontier([frontier] if single else frontier, self._dimensions)
        async with self._one_advance:
            presence, publisher = self._open()
            async with self._one_call:  # behind what was sent before
                self._capabilities.check_advance(wanted)
                self._wanted, self._known = wanted, None
            try:
                with self._fenced():
                    await publisher.flush()
                presence.check()
                self._capabilities.advance(wanted)
            finally:
                self._wanted = None
            await presence.advance(wanted, self._unsaid.take(wanted))

    async def close(self) -> None:
        """End well: wait until all is staged, and give up everything. A second call does nothing.

        Raises:
            Fenced: another process has this name now, or it was given up.
            NotDurable, Indefinite: as `advance`.
            StreamleaseError: a message failed. Nothing is given up: the same name may go on in time.
        """
        if self._publisher is None:
            return
        presence, publisher = self._open()
        try:
            async with self._one_advance, self._one_call:
                presence.check()
                with self._fenced():
                    await publisher.close()
                await presence.leave(self._capabilities.upper, self._unsaid.take())
        finally:
            await self._stop()

    async def abandon(self) -> None:
        """End without giving anything up, as an exception does: the same name may go on in time.

        Raises:
            StreamleaseError: a message failed that had been sent.
        """
        publisher, self._publisher, self._known = self._publisher, None, None
        self._over = True
        if self._presence is not None:
            await self._presence.close()
        if publisher is not None:
            with self._fenced():
                await publisher.close()

    async def _stop(self) -> None:
        with contextlib.suppress(StreamleaseError):
            await self.abandon()

    # ------------------------------------------------------------ inside

    def _open(self) -> tuple[Presence, Publisher]:
        if self._presence is None or self._publisher is None:
            raise InvalidInput(
                f"publisher {self.name} is not open: write 'async with client.epoch_publisher(...) as ...'"
            )
        return self._presence, self._publisher

    @contextlib.asynccontextmanager
    async def _sending(self, epoch: EpochInput) -> AsyncIterator[Publisher]:
        """While messages of `epoch` are put into parts; if that succeeds, it was sent at."""
        at = checked_epoch(epoch, self._dimensions)
        async with self._one_call:
            presence, publisher = self._open()
            presence.check()
            self._check_held(at)
            if at != self._stamped:
                self._known = None
                publisher.stamp(Stamp(at, presence.writer))
                self._stamped = at
            yield publisher
            self._capabilities.send(at)
            if self._dimensions == 1 and self._wanted is None:
                self._known = at[0], presence, publisher

    def _check_held(self, epoch: Epoch) -> None:
        """Whether it holds `epoch`, and no advance under way gives it up.

        Raises:
            NotCapable: it does not.
        """
        held = self._capabilities.frontier
        if self._wanted is not None and not is_open(self._wanted, epoch):
            held = self._wanted
        if not is_open(held, epoch):
            Capabilities(self.name, held).send(epoch)  # which says what is wrong

    @contextlib.contextmanager
    def _fenced(self) -> Iterator[None]:
        """Within this, who finds the publisher fenced says so to all later calls."""
        try:
            yield
        except Fenced as error:
            presence = self._presence
            raise (presence.end(error) if presence is not None else error) from None

    def _staged(self, stamp: Stamp, stream: StreamId, first: int, rows: int) -> None:
        self._unsaid.add(stamp.epoch, stream, first, rows)
