"""Messages of a group to the broker: published at QoS 1, and committed once the broker has acknowledged them.

Batches go out as they come, up to the window; they are committed in the order in which they were handed out.
A message that the broker refuses has failed, as in any consumer: it comes again, and becomes a dead letter if
the group says so. What was published behind it in its stream is published again then. So each message goes
out at least once, in the order of its stream; twice after a crash, a failure, or a connection that ended.
The columns of a space with a schema go out as a JSON object, which is also the form in which they come in.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from streamlease.agent.batch import Batch
from streamlease.gateway.mqtt import metrics
from streamlease.gateway.mqtt.bridge_settings import BridgeSettings
from streamlease.gateway.mqtt.mqtt_headers import BROKER, properties_of
from streamlease.protocol.errors import Fenced, Indefinite, InvalidInput
from streamlease.protocol.plain_values import plain
from streamlease.streams.entries.delivered import Message
from streamlease.streams.tasks import first_of

if TYPE_CHECKING:
    from streamlease.agent.subscription import SharedReader
    from streamlease.gateway.mqtt.broker_line import BrokerLine

OVERHEAD = 64
"""Bytes that a packet has beside topic, payload and properties, at most."""

log = logging.getLogger(__name__)


class Outbound:
    """The way out, of one bridge."""

    def __init__(self, settings: BridgeSettings, installation: str) -> None:
        self._settings = settings
        self._installation = installation
        self._five = settings.protocol == "5"
        self._most = 0
        """How many may be under way; nothing goes out before the broker has said how many it takes."""
        self._room = asyncio.Event()
        self._sent: dict[int, asyncio.Future[str]] = {}
        """By packet identifier: why the broker refused it; empty if it took it."""
        self._batches: deque[tuple[Batch, list[tuple[Message, asyncio.Future[str]]]]] = deque()
        self._changed = asyncio.Event()
        self._largest = 0
        """Of a packet, in bytes; 0: the broker said nothing."""
        self._reader: SharedReader | None = None
        self._finishing = False
        self.line: BrokerLine
        """Set by the bridge: each of the two needs the other."""

    def line_stands(self, limits: Any) -> None:
        """The broker took a connection."""
        self._largest = getattr(limits, "MaximumPacketSize", 0)
        self._most = min(self._settings.window, getattr(limits, "ReceiveMaximum", self._settings.window))
        self._room.set()

    def taken(self, packet: int, code: Any) -> None:
        """The broker answered for a message."""
        answer = self._sent.pop(packet, None)
        if answer is None or answer.done():
            return
        self._room.set()
        refused = code.is_failure
        (metrics.REFUSED if refused else metrics.SENT).inc()
        answer.set_result(f"the broker refused it ({code.getName()})" if refused else "")

    async def run(self, reader: SharedReader) -> None:
        """Send what the group hands out, until `finish`.

        Raises:
            StreamleaseError: the subscription has ended.
        """
        self._reader = reader
        await first_of(self._take(reader), self._settle())

    async def finish(self) -> None:
        """Take no more, and wait until what was sent is acknowledged and committed."""
        self._finishing = True
        while self._batches:
            self._changed.clear()
            await self._changed.wait()
        if self._reader is not None:
            await self._reader.flush()

    async def _take(self, reader: SharedReader) -> None:
        async for batch in reader:
            if self._finishing:  # nothing of it was sent: whoever comes next gets it
                await asyncio.Future()
            under_way: list[tuple[Message, asyncio.Future[str]]] = []
            for message in batch.messages:
                under_way.append((message, await self._send(message)))
            self._batches.append((batch, under_way))
            self._changed.set()

    async def _send(self, message: Message) -> asyncio.Future[str]:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        payload = message.payload if message.values is None else to_json(plain(message.values))
        why = self._why_not(message, payload)
        if why is not None:
            answer.set_result(why)
            return answer
        while len(self._sent) >= self._most:
            self._room.clear()
            await self._room.wait()
        properties = properties_of(message, self._installation) if self._five else None
        packet = self.line.publish(message.topic, payload, properties)
        self._sent[packet] = answer
        return answer

    def _why_not(self, message: Message, payload: bytes) -> str | None:
        """Empty: it does not go out, and that is well; otherwise why it cannot."""
        broker = dict(message.headers).get(BROKER)
        if broker is not None and (not self._five or broker == str(self._settings.address).encode()):
            metrics.OWN.labels("out").inc()
            return ""
        size = OVERHEAD + len(payload) + 3 * len(message.topic)
        size += sum(len(name) * 3 + len(value) + 5 for name, value in message.headers)
        if self._largest and size > self._largest:
            return f"it takes {size} bytes, and the broker accepts {self._largest}"
        return None

    async def _settle(self) -> None:
        while True:
            while not self._batches:
                self._changed.clear()
                await self._changed.wait()
            batch, under_way = self._batches[0]
            await self._commit(batch, under_way)
            self._batches.popleft()
            self._changed.set()

    async def _commit(self, batch: Batch, under_way: list[tuple[Message, asyncio.Future[str]]]) -> None:
        try:
            for message, answer in under_way:
                refused = await answer
                if batch.is_void:
                    return
                if refused:
                    log.warning(
                        "offset %d of stream %s does not go out: %s", message.offset, batch.stream, refused
                    )
                    await batch.fail(message.offset, refused)
                    return
            batch.commit_later()
        except (Fenced, Indefinite, InvalidInput) as error:  # whoever has the stream now sends them again
            log.warning("stream %s: %s", batch.stream, error)
