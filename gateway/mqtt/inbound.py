"""Messages of the broker into spaces: appended in the order in which they came, and only then acknowledged.

What came while one batch was being written is the next one. A batch is noted (``DeliveryMemory``), appended
(``Transfer``) and acknowledged; so while Redis is away, what was taken waits, the broker sends no more than
it may without an acknowledgement, and beyond `MOST_BYTES`, or twice the window, the line is not read.

A message that no space can take (no topic, no fit, too large) ends the bridge, with all before it written, or
is dropped and counted, as the user chose. It is never acknowledged without one of the two.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from streamlease.gateway.mqtt import metrics
from streamlease.gateway.mqtt.bridge_settings import BridgeSettings
from streamlease.gateway.mqtt.core.packets import PacketKind, Packets, TakenMessage
from streamlease.gateway.mqtt.mqtt_headers import FROM, headers_of
from streamlease.protocol.errors import (
    Indefinite,
    InvalidInput,
    NotDurable,
    SchemaMismatch,
    StoreRefused,
    StoreUnavailable,
    StreamleaseError,
    UnknownSpace,
)
from streamlease.protocol.topics import check_topic
from streamlease.streams.entries.message_rows import Headers
from streamlease.streams.imports.delivery_memory import DeliveryMemory, Note, SourceStanding
from streamlease.streams.imports.transfer import Item, SpaceEnded, Transfer
from streamlease.streams.log.log import Position
from streamlease.streams.spaces.spaces import SpaceStore

if TYPE_CHECKING:
    from paho.mqtt.client import MQTTMessage

    from streamlease.gateway.mqtt.broker_line import BrokerLine

MOST_MESSAGES = 1000
MOST_BYTES = 64 * 1024 * 1024
ROW_BYTES = 256
AGAIN_SECONDS = 1.0

_PASSING = (StoreUnavailable, StoreRefused, Indefinite, NotDurable)
_UNFIT = (InvalidInput, SchemaMismatch, UnknownSpace, SpaceEnded)

T = TypeVar("T")

log = logging.getLogger(__name__)


class BrokerMessage(NamedTuple):
    """A message as it came."""

    topic: str
    payload: bytes
    headers: Headers

    @property
    def size(self) -> int:
        """About how many bytes it takes here."""
        return ROW_BYTES + len(self.topic) + len(self.payload)


class Inbound:
    """The way in, of one bridge."""

    def __init__(
        self,
        settings: BridgeSettings,
        installation: str,
        spaces: SpaceStore,
        packets: Packets[BrokerMessage],
        memory: DeliveryMemory,
        standing: SourceStanding,
        transfer: Transfer,
    ) -> None:
        self._settings = settings
        self._installation = installation
        self._spaces = spaces
        self._packets = packets
        self._memory = memory
        self._standing = standing
        self._transfer = transfer
        self._waiting: deque[TakenMessage[BrokerMessage]] = deque()
        self._bytes = 0
        """Of what waits or is being written."""
        self._at_work = 0
        self._news = asyncio.Event()
        self._written = asyncio.Event()
        self.trouble = ""
        """Why Redis does not take what came; empty while it does."""
        self._finishing = False
        self._told_unreliable = False
        self._told_unfit: set[str] = set()
        for kind in _UNFIT if settings.unfit == "drop" else ():
            metrics.DROPPED.labels(
                kind.__name__
            )  # for Prometheus, a counter that begins above 0 rises by nothing
        self.line: BrokerLine
        """Set by the bridge: each of the two needs the other."""

    # ----------------------------------------------------------------------------------- what comes

    def arrived(self, message: MQTTMessage) -> None:
        """A message came."""
        if self._finishing:  # it is not acknowledged, so whoever comes next gets it
            return
        metrics.RECEIVED.labels(str(message.qos)).inc()
        digest, content = self._read(message)
        packet = message.mid if message.qos else 0
        arrival, delivery = self._packets.came(packet, digest, content, again=message.dup)
        if message.dup and arrival is not PacketKind.SUSPECT:
            metrics.AGAIN.labels("no" if arrival is PacketKind.NEW else "yes").inc()
        if packet == 0 and not self._told_unreliable:
            self._told_unreliable = True
            log.warning(
                "topic %s comes at QoS 0, so the broker forgets a message once it is sent: publish at QoS 1 "
                "what must not be lost",
                ascii(content.topic)[:80],
            )
        match arrival:
            case PacketKind.DURABLE:
                self._acknowledge(delivery)
            case PacketKind.UNDER_WAY:
                pass
            case PacketKind.NEW | PacketKind.SUSPECT:
                self._waiting.append(delivery)
                self._bytes += content.size
                self._news.set()
                self._tell()
                if self._is_full:
                    self.line.pause()

    def _read(self, message: MQTTMessage) -> tuple[bytes, BrokerMessage]:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            topic = ""  # no space takes it
        payload = bytes(message.payload)
        headers = headers_of(
            message.properties, str(self._settings.address), retained=message.retain, qos=message.qos
        )
        hashed = blake2b(topic.encode(), digest_size=8)
        for part in (payload, *(part for name, value in headers for part in (name.encode(), value))):
            hashed.update(b"%d:" % len(part))
            hashed.update(part)
        return hashed.digest(), BrokerMessage(topic, payload, headers)

    @property
    def _is_full(self) -> bool:
        held = len(self._waiting) + self._at_work
        return self._bytes > MOST_BYTES or held > 2 * self._settings.window

    async def finish(self) -> None:
        """Take no more, and wait until all that came is done."""
        self._finishing = True
        while self._waiting or self._at_work:
            self._written.clear()
            await self._written.wait()

    def _tell(self) -> None:
        metrics.IN_HAND.set(len(self._waiting) + self._at_work)
        metrics.IN_HAND_BYTES.set(self._bytes)

    # ---------------------------------------------------------------------------------- what is done

    async def run(self) -> None:
        """Write what comes, batch by batch.

        Raises:
            Fenced: another bridge has the same session.
            InvalidInput, SchemaMismatch, UnknownSpace: no space can take a message, and that is to end it.
            StreamleaseError: trying again changes nothing.
        """
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(MOST_MESSAGES, len(self._waiting)))]
                sizes = sum(one.content.size for one in batch if one.content is not None)
                self._at_work = len(batch)
                await self._write(batch)
                self._at_work = 0
                self._bytes -= sizes
                self._tell()
                self._written.set()
                if not (self._is_full or self._finishing):
                    self.line.resume()

    async def _write(self, batch: Sequence[TakenMessage[BrokerMessage]]) -> None:
        """Have all of `batch` durable, or dropped, and acknowledged."""
        positions: dict[TakenMessage[BrokerMessage], Position] = {}
        while True:
            done: list[TakenMessage[BrokerMessage]] = []
            items: list[Item] = []
            notes: list[Note] = []
            refusal: StreamleaseError | None = None
            for delivery in batch:
                try:
                    item = await self._patiently(partial(self._item, delivery, positions))
                except _UNFIT as error:
                    refusal = self._unfit(delivery, error)
                    if refusal is not None:
                        break
                    item = None
                if item is not None:
                    items.append(item)
                    notes.append(Note(item.position, delivery.packet, delivery.digest))
                done.append(delivery)
            try:
                if items:
                    await self._patiently(partial(self._memory.note, notes, self._packets.counted))
                    await self._patiently(partial(self._transfer.put, items))
                    metrics.BROUGHT.inc(len(items))
                break
            except _UNFIT:  # a space has changed since: look which of them it is
                self._spaces.forget()
        for delivery in done:
            if delivery.former is not None:
                metrics.AGAIN.labels("no" if delivery in positions else "yes").inc()
            if self._packets.settled(delivery):
                self._acknowledge(delivery)
        if refusal is not None:
            raise refusal

    async def _item(
        self, delivery: TakenMessage[BrokerMessage], positions: dict[TakenMessage[BrokerMessage], Position]
    ) -> Item | None:
        """What is to be appended; None if it is there, or did not come from elsewhere.

        Raises:
            InvalidInput, SchemaMismatch, UnknownSpace: no space can take it.
            StoreUnavailable, StoreRefused, Indefinite.
        """
        message = delivery.content
        assert message is not None
        if any(name == FROM and value.decode() == self._installation for name, value in message.headers):
            metrics.OWN.labels("in").inc()
            return None
        check_topic(message.topic)
        space = await self._spaces.for_topic(message.topic)
        former = delivery.former
        if former is not None and self._standing.has(space, message.topic, former.position):
            return None
        payload = message.payload if space.newest_schema is None else _values(message.payload)
        if delivery not in positions:
            positions[delivery] = self._memory.position()
        headers = message.headers
        item = Item(positions[delivery], message.topic, payload, None, headers)
        await self._transfer.check(item)
        return item

    def _unfit(
        self, delivery: TakenMessage[BrokerMessage], error: StreamleaseError
    ) -> StreamleaseError | None:
        """What becomes of a message that no space can take: the error that ends the bridge, or None."""
        message = delivery.content
        topic = ascii(message.topic if message is not None else "")[:80]
        if self._settings.unfit == "stop":
            return type(error)(
                f"a message with topic {topic} cannot be brought in: {error}; or start the bridge with "
                f"--unfit drop, which leaves such messages out"
            )
        kind = type(error).__name__
        metrics.DROPPED.labels(kind).inc()
        if kind not in self._told_unfit:
            self._told_unfit.add(kind)
            log.warning(
                "a message with topic %s is dropped, and so are all like it (counted, not told again): %s",
                topic,
                error,
            )
        return None

    async def _patiently(self, act: Callable[[], Awaitable[T]]) -> T:
        """Do it, again and again while Redis is away; safe to repeat."""
        while True:
            try:
                done = await act()
                self.trouble = ""
                return done
            except _PASSING as error:
                self.trouble = str(error)
                log.warning("%s; the bridge keeps %d messages, and tries again", error, len(self._packets))
                await asyncio.sleep(AGAIN_SECONDS)

    def _acknowledge(self, delivery: TakenMessage[BrokerMessage]) -> None:
        self.line.acknowledge(delivery.packet)
        self._packets.acknowledged(delivery)


def _values(payload: bytes) -> dict[str, Any]:
    """The columns of a message for a space with a schema.

    Raises:
        SchemaMismatch: it is no JSON object.
    """
    try:
        values = json.loads(payload)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise SchemaMismatch(
            f"the payload {payload[:40]!a} is no JSON object, as the schema of its space asks for"
        )
    return values
