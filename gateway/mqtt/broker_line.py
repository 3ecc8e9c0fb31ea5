"""The connection to the broker: one at a time, made again when it ends, on the event loop.

paho-mqtt knows the protocol; its sockets are watched by the event loop, so there are no threads but the one
that opens a connection, and no locks. What comes is told at once, in the order in which it came, to whoever
owns the line (`LineEvents`); nothing waits in between. Who can take no more pauses the line: then the socket
is not read, and the broker, which has a limit of its own (receive maximum in MQTT 5), waits.

A line ends with an error that trying again does not mend (`BrokerRefused`), and, before it ever stood, once
the broker was not there for `patience` seconds.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Sequence
from typing import Any, Protocol

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from streamlease.gateway.mqtt import metrics
from streamlease.gateway.mqtt.bridge_settings import BridgeSettings
from streamlease.gateway.mqtt.broker_errors import (
    BrokerUnavailable,
    lost_connection,
    refused_connection,
    refused_filter,
    unreachable,
)
from streamlease.gateway.mqtt.broker_sockets import part, tls_context
from streamlease.protocol.errors import StreamleaseError
from streamlease.streams.tasks import task_failed

KEEP_ALIVE = 30
ANSWER_SECONDS = 10.0
CONNECT_SECONDS = 5.0
FIRST_WAIT, LONGEST_WAIT = 0.2, 15.0
PATIENCE = 10.0
SETTLED_SECONDS = 10.0
"""After so long a connection is no failure, and the next attempt comes at once."""

NEVER_EXPIRES = 0xFFFF_FFFF
AT_ONCE = 100
"""So many messages are taken before others of the event loop have their turn."""

log = logging.getLogger(__name__)


class LineEvents(Protocol):
    """Who owns the line; nothing here may wait."""

    def line_stands(self, *, session_present: bool, limits: Any) -> None:
        """The broker took the connection; `limits` are its properties."""

    def line_lost(self) -> None:
        """The connection has ended."""

    def arrived(self, message: paho.MQTTMessage) -> None:
        """A message came."""

    def taken(self, packet: int, code: Any) -> None:
        """The broker answered for a message that was sent."""

    def known_filters(self) -> Sequence[str] | None:
        """What the session is subscribed to, as far as that is known."""

    async def check_alone(self) -> None:
        """Before a connection is made again: whether another bridge has taken the session over.

        Raises:
            Fenced: one has.
        """

    async def subscribed(self) -> None:
        """The session is subscribed to what is wanted."""


class BrokerLine:
    """The connection of one bridge. Made and used on one event loop."""

    def __init__(self, settings: BridgeSettings, owner: LineEvents) -> None:
        """Raises: InvalidOption: a file for TLS cannot be used."""
        self._settings = settings
        self._owner = owner
        self._five = settings.protocol == "5"
        self._loop = asyncio.get_running_loop()
        self._paho = self._client()
        self._socket: Any = None
        """What the event loop watches."""
        self._greeting: asyncio.Future[None] | None = None
        self._answers: dict[int, asyncio.Future[Sequence[Any]]] = {}
        self._lost: asyncio.Future[StreamleaseError] | None = None
        self._paused = False
        self._seen = 0
        self.trouble = f"not yet connected to broker {settings.address}"
        """Why there is no connection with all subscriptions; empty while there is one."""

    def _client(self) -> paho.Client:
        own = self._settings
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=own.client_id,
            clean_session=None if self._five else False,
            protocol=MQTTProtocolVersion.MQTTv5 if self._five else MQTTProtocolVersion.MQTTv311,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        if own.login is not None:
            client.username_pw_set(own.login, own.password)
        if own.address.tls:
            client.tls_set_context(tls_context(own))
        client.connect_timeout = CONNECT_SECONDS
        client.max_inflight_messages_set(own.window)
        client.on_connect = self._connected
        client.on_disconnect = self._disconnected
        client.on_message = self._message
        client.on_subscribe = self._answered
        client.on_unsubscribe = self._answered
        client.on_publish = self._taken
        client.on_socket_close = self._unwatch
        client.on_socket_register_write = self._want_write
        client.on_socket_unregister_write = self._want_no_write
        properties = None
        if self._five:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = NEVER_EXPIRES
            properties.ReceiveMaximum = own.window
        host, port = own.address.host, own.address.port
        if self._five:
            client.connect_async(host, port, KEEP_ALIVE, clean_start=False, properties=properties)
        else:
            client.connect_async(host, port, KEEP_ALIVE)
        return client

    # ---------------------------------------------------------------------------------- for the owner

    async def run(self) -> None:
        """Be connected, again and again.

        Raises:
            BrokerRefused: trying again changes nothing.
            BrokerUnavailable: it never stood.
            Fenced: another bridge has the session.
        """
        wait, deadline, stood = FIRST_WAIT, self._loop.time() + PATIENCE, False
        while True:
            try:
                await self._open()
                stood, began, self.trouble = True, self._loop.time(), ""
                log.info("connected to broker %s as %s", self._settings.address, self._settings.client_id)
                try:
                    await self._stay()
                finally:
                    if self._loop.time() - began > SETTLED_SECONDS:
                        wait = FIRST_WAIT
            except BrokerUnavailable as error:
                self.trouble = str(error)
                if not stood and self._loop.time() + wait > deadline:
                    raise
                log.warning("%s; the bridge tries again in %.1f s", error, wait)
            finally:
                self._drop()
            await self._owner.check_alone()
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(LONGEST_WAIT, 2 * wait)

    def pause(self) -> None:
        """Read no more for now."""
        if not self._paused:
            self._paused = True
            if self._socket is not None:
                self._loop.remove_reader(self._socket)

    def resume(self) -> None:
        """Read again."""
        if self._paused:
            self._paused = False
            if self._socket is not None:
                self._loop.add_reader(self._socket, self._readable)
                self._loop.call_soon(self._readable)  # with TLS, what was read already makes no socket ready

    def acknowledge(self, packet: int) -> None:
        """The message is durable."""
        self._paho.ack(packet, 1)

    def publish(self, topic: str, payload: bytes, properties: Properties | None) -> int:
        """Send a message at QoS 1, now or when the connection stands again; its packet identifier."""
        return self._paho.publish(topic, payload, qos=1, properties=properties).mid

    async def leave(self) -> None:
        """End the connection in good order; the session stays at the broker.

        What acknowledges messages arrives before the end (`part`).
        """
        found = self._socket
        if found is not None and self._paho.is_connected():
            while self._paho.want_write() and self._socket is not None:
                self._paho.loop_write()
                await asyncio.sleep(0.01)
            self._unwatch(self._paho, None, found)
            await asyncio.to_thread(part, found)

    def close(self) -> None:
        """End the connection."""
        self._drop()

    # ------------------------------------------------------------------------------- one connection

    async def _open(self) -> None:
        self._greeting = self._loop.create_future()
        self._lost = self._loop.create_future()
        try:
            await asyncio.to_thread(self._paho.reconnect)
        except OSError as error:
            raise unreachable(self._settings, error) from None
        self._watch()
        await self._answer(self._greeting, "a connection")
        await self._subscribe()
        await self._owner.subscribed()

    async def _stay(self) -> None:
        """Look after the connection until it ends; always by an error."""
        assert self._lost is not None
        while not self._lost.done():
            self._paho.loop_misc()
            await asyncio.wait([self._lost], timeout=1.0)
        raise self._lost.result()

    async def _subscribe(self) -> None:
        wanted = self._settings.filters
        known = self._owner.known_filters()
        gone = [one for one in known or () if one not in wanted]
        if gone:
            _, packet = self._paho.unsubscribe(gone)
            await self._answer(self._expect(packet), "the end of a subscription")
        new = [one for one in wanted if known is None or one not in known]
        if not new:
            return
        _, packet = self._paho.subscribe([(one, self._options(one)) for one in new])
        codes = await self._answer(self._expect(packet), "a subscription")
        for filter, code in zip(new, codes, strict=True):
            if code.is_failure:
                raise refused_filter(self._settings, filter, code)
            if code.value == 0:
                log.warning(
                    "the broker gives %s at QoS 0 only: what comes while the bridge is away is lost", filter
                )

    def _options(self, filter: str) -> Any:
        if not self._five:
            return 1
        shared = filter.startswith("$share/")
        return SubscribeOptions(
            qos=1, noLocal=not shared, retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB
        )

    def _expect(self, packet: int | None) -> asyncio.Future[Sequence[Any]]:
        answer: asyncio.Future[Sequence[Any]] = self._loop.create_future()
        if packet is not None:
            self._answers[packet] = answer
        return answer

    async def _answer(self, wanted: asyncio.Future[Any], what: str) -> Any:
        assert self._lost is not None
        await asyncio.wait([wanted, self._lost], timeout=ANSWER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if wanted.done():
            return wanted.result()
        if self._lost.done():
            raise self._lost.result()
        raise BrokerUnavailable(f"broker {self._settings.address} was asked for {what} and gave no answer")

    def _drop(self) -> None:
        if self._socket is not None:
            found = self._socket
            self._unwatch(self._paho, None, found)
            found.close()
        self._answers.clear()

    # --------------------------------------------------------------------------- the event loop's part

    def _watch(self) -> None:
        self._socket = self._paho.socket()
        if self._socket is None:
            return
        with_room = getattr(self._socket, "setsockopt", None)
        if with_room is not None:
            with_room(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._paused = False
        self._loop.add_reader(self._socket, self._readable)
        if self._paho.want_write():
            self._loop.add_writer(self._socket, self._writable)

    def _unwatch(self, _client: Any, _data: Any, _socket: Any) -> None:
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket = None
            self._owner.line_lost()
            metrics.CONNECTED.set(0)

    def _want_write(self, _client: Any, _data: Any, _socket: Any) -> None:
        if self._socket is not None:
            self._loop.add_writer(self._socket, self._writable)

    def _want_no_write(self, _client: Any, _data: Any, _socket: Any) -> None:
        if self._socket is not None:
            self._loop.remove_writer(self._socket)

    def _writable(self) -> None:
        try:
            self._paho.loop_write()
        except Exception as error:
            self._fail(error)

    def _readable(self) -> None:
        try:
            self._read()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """A defect, of which the event loop would only write a line."""
        log.error("the line to broker %s ended by a defect", self._settings.address, exc_info=error)
        self._drop()
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(task_failed(f"bridge {self._settings.client_id}", "reading", error))

    def _read(self) -> None:
        for _ in range(AT_ONCE):
            if self._socket is None or self._paused:
                return
            before = self._seen
            self._paho.loop_read()
            pending = getattr(self._socket, "pending", None)
            if self._seen == before and not (pending is not None and pending()):
                return
        self._loop.call_soon(self._readable)

    # ------------------------------------------------------------------------------- what paho tells

    def _connected(self, _client: Any, _data: Any, flags: Any, code: Any, properties: Any) -> None:
        assert self._greeting is not None
        if self._greeting.done():
            return
        if code.is_failure:
            self._greeting.set_exception(refused_connection(self._settings, code))
            self._greeting.exception()
            return
        metrics.CONNECTED.set(1)
        metrics.CONNECTIONS.inc()
        self._owner.line_stands(session_present=bool(flags.session_present), limits=properties)
        self._greeting.set_result(None)

    def _disconnected(self, _client: Any, _data: Any, _flags: Any, code: Any, _properties: Any) -> None:
        if self._lost is not None and not self._lost.done():
            greeted = self._greeting is not None and self._greeting.done()
            self._lost.set_result(lost_connection(self._settings, code, greeted=greeted))

    def _message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        self._seen += 1
        self._owner.arrived(message)

    def _answered(
        self, _client: Any, _data: Any, packet: int, codes: Sequence[Any], _properties: Any
    ) -> None:
        answer = self._answers.pop(packet, None)
        if answer is not None and not answer.done():
            answer.set_result(codes)

    def _taken(self, _client: Any, _data: Any, packet: int, code: Any, _properties: Any) -> None:
        self._seen += 1
        self._owner.taken(packet, code)
