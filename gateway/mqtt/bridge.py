"""``streamlease bridge mqtt``: one process between a broker and the spaces of a Redis.

::

    broker --PUBLISH--> BrokerLine --> Inbound --note, append--> Redis
           <--PUBACK---                        <--durable-------
    broker <--PUBLISH-- BrokerLine <-- Outbound <--batches of a group-- Redis
           ---PUBACK-->                        ---commit-------------->

All runs on one event loop. The parts live as long as the bridge, and the first that ends by an error ends it.
SIGTERM and Ctrl-C end it in good order: what was taken is written and acknowledged, what was sent, committed.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from streamlease.agent.client import Client, connect
from streamlease.gateway.mqtt import metrics
from streamlease.gateway.mqtt.bridge_probes import WORKING, BridgeProbes
from streamlease.gateway.mqtt.bridge_settings import BridgeSettings, inner_filters
from streamlease.gateway.mqtt.broker_line import BrokerLine
from streamlease.gateway.mqtt.core.packets import FormerDelivery, Packets
from streamlease.gateway.mqtt.inbound import BrokerMessage, Inbound
from streamlease.gateway.mqtt.outbound import Outbound
from streamlease.protocol.errors import Fenced, StreamleaseError
from streamlease.streams.imports.delivery_memory import DeliveryMemory, SourceStanding
from streamlease.streams.imports.transfer import Transfer
from streamlease.streams.spaces.epoch_settings import check_plain
from streamlease.streams.spaces.installation import installation
from streamlease.streams.tasks import first_of

if TYPE_CHECKING:
    from paho.mqtt.client import MQTTMessage

    from streamlease.registry.starts import Start

FINISH_SECONDS = 10.0
LOOK_SECONDS = 1.0
"""How long a new connection waits for a look into Redis: it goes without."""


log = logging.getLogger(__name__)


class MqttBridge:
    """The owner of the line and of both ways. Made by :meth:`prepare`."""

    def __init__(
        self,
        client: Client,
        settings: BridgeSettings,
        inbound: Inbound,
        outbound: Outbound,
        packets: Packets[Any],
        memory: DeliveryMemory,
    ) -> None:
        self._settings = settings
        self._inbound = inbound
        self._outbound = outbound
        self._packets = packets
        self._memory = memory
        self._session_known = memory.filters is not None
        """Whether the broker should have a session."""
        self._client = client
        self._ending = False
        self.line = inbound.line = outbound.line = BrokerLine(settings, self)

    @classmethod
    async def prepare(cls, client: Client, settings: BridgeSettings) -> MqttBridge:
        """Look whether all is there, and take the session over.

        Raises:
            UnknownSpace: no space has topics that a filter selects.
            InvalidInput: one of them has epochs; or a file for TLS cannot be used.
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        known = await client.spaces.look()
        spaces = {
            space.name: space for one in inner_filters(settings.filters) for space in known.for_filter(one)
        }
        for space in spaces.values():
            check_plain(space)
        source = settings.source
        standing = await SourceStanding.look(client.redis, source, spaces.values())
        memory = await DeliveryMemory.begin(client.redis, source, 2 * settings.window, standing.newest)
        former = [FormerDelivery(note.packet, note.digest, note.position) for note in memory.notes]
        packets: Packets[BrokerMessage] = Packets(settings.window, former, memory.counted)
        transfer = Transfer(client.redis, source, spaces=client.spaces, alone=True)
        name = await installation(client.redis)
        inbound = Inbound(settings, name, client.spaces, packets, memory, standing, transfer)
        return cls(client, settings, inbound, Outbound(settings, name), packets, memory)

    async def state(self) -> str:
        """What it does now, in words: `WORKING`, or what is missing. It asks Redis."""
        if self._ending:
            return "ending: what was taken is written and acknowledged, what was sent is committed"
        trouble = self.line.trouble or self._inbound.trouble
        if trouble:
            return trouble
        try:
            await self._client.spaces.look()
        except StreamleaseError as error:
            return str(error)
        return WORKING

    async def run(self, start: Start, stop: asyncio.Event) -> None:
        """Be a bridge until `stop`.

        Raises:
            BrokerRefused, BrokerUnavailable: as `BrokerLine.run`.
            StreamleaseError: as the ways.
        """
        works: list[Coroutine[Any, Any, object]] = [self.line.run(), self._inbound.run(), self._end(stop)]
        try:
            if self._settings.out is None:
                await first_of(*works)
                return
            group, name = str(self._settings.out), self._settings.client_id
            async with self._client.subscribe(group, start=start, name=name) as reader:
                await first_of(*works, self._outbound.run(reader))
        finally:
            self.line.close()

    async def _end(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._ending = True
        log.info("the bridge ends, with %d messages in hand", len(self._packets))
        self.line.pause()
        try:
            async with asyncio.timeout(FINISH_SECONDS):
                await self._inbound.finish()
                self.line.resume()  # for the broker's acknowledgements
                await self._outbound.finish()
                await self.line.leave()
        except TimeoutError:
            log.warning("the bridge ends with messages that are not done: they come again")

    # ------------------------------------------------------------------------------ what the line tells

    def line_stands(self, *, session_present: bool, limits: Any) -> None:
        """The broker took the connection."""
        if self._session_known and not session_present and self._settings.filters:
            metrics.SESSIONS_LOST.inc()
            log.warning(
                "broker %s has forgotten the session %s: what it got meanwhile does not come",
                self._settings.address,
                self._settings.client_id,
            )
        if not session_present:
            self._memory.filters = None
        self._session_known = True
        self._packets.connected(session_present=session_present)
        self._outbound.line_stands(limits)

    def line_lost(self) -> None:
        """The connection has ended."""
        self._packets.disconnected()

    def arrived(self, message: MQTTMessage) -> None:
        """A message came."""
        self._inbound.arrived(message)

    def taken(self, packet: int, code: Any) -> None:
        """The broker answered for a message that was sent."""
        self._outbound.taken(packet, code)

    def known_filters(self) -> Sequence[str] | None:
        """What the session is subscribed to, as far as that is known."""
        return self._memory.filters

    async def check_alone(self) -> None:
        """Two bridges of one name would take the connection from each other for ever."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                alone = await self._memory.is_newest()
        except (StreamleaseError, TimeoutError):
            return  # Redis is away; what is appended is fenced in any case
        if not alone:
            raise Fenced(
                f"another bridge to broker {self._settings.address} was started with the client id "
                f"{self._settings.client_id}: end one of the two, or give each its own --client-id"
            )

    async def subscribed(self) -> None:
        """The session is subscribed to what is wanted."""
        if self._memory.filters != self._settings.filters:
            try:
                await self._memory.subscribed(self._settings.filters)
            except StreamleaseError as error:  # the next start subscribes once more
                log.warning("it is not noted what the session is subscribed to: %s", error)


async def run_bridge(redis_url: str, settings: BridgeSettings, start: Start, probes: BridgeProbes) -> None:
    """Be a bridge until SIGTERM or Ctrl-C.

    Raises:
        StoreUnavailable, Unsupported: Redis does not answer at the start, or does not suit.
        StreamleaseError: as `MqttBridge.prepare` and `MqttBridge.run`.
    """
    async with connect(redis_url) as client:
        bridge = await MqttBridge.prepare(client, settings)
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        probes.state = bridge.state
        await bridge.run(start, stop)
