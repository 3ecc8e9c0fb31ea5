"""Putting one message into a part, whatever it is: what ``submit`` and ``send`` do not do by themselves."""

from __future__ import annotations

import asyncio
from datetime import datetime

from streamlease.protocol.topics import check_topic
from streamlease.streams.entries.entries import HeadersInput
from streamlease.streams.entries.message_rows import FIRST_TIME, LAST_TIME
from streamlease.streams.publish.buffer import ROW_BYTES, Buffer, size_of
from streamlease.streams.publish.gate import Gate
from streamlease.streams.publish.inputs import Payload, row_of
from streamlease.streams.publish.lanes import Lane, Lanes
from streamlease.streams.publish.parts import Part
from streamlease.streams.publish.routes import Routes
from streamlease.streams.publish.traces import Traces
from streamlease.streams.publish.turns import Turns


class Entering:
    """Puts messages into the parts of one publisher.

    Args:
        timeout: seconds for which the space of a topic is looked up.
    """

    def __init__(
        self,
        gate: Gate,
        turns: Turns,
        routes: Routes,
        lanes: Lanes,
        buffer: Buffer,
        traces: Traces | None,
        timeout: float,
    ) -> None:
        self._gate = gate
        self._turns = turns
        self._routes = routes
        self._lanes = lanes
        self._buffer = buffer
        self._traces = traces
        self._timeout = timeout
        self._clock = asyncio.get_running_loop().time

    def entered(self, topic: str) -> Lane | None:
        """The lane of a topic that becomes `quick` now, without a look into Redis; None if it does not.

        Raises:
            InvalidTopic: `topic` is malformed.
        """
        return None if self._traces is not None or self._gate.closed else self._routes.entered(topic)

    async def place(
        self,
        topic: str,
        payload: Payload,
        key: bytes | str | None,
        headers: HeadersInput | None,
        timestamp: datetime | int | None,
        diff: int | None,
        *,
        sent: bool,
    ) -> tuple[Part, int]:
        """Put a message into a part; that, and the place in it.

        Args:
            sent: whether somebody waits for it.

        Raises:
            As ``Publisher.submit``.
        """
        if sent and diff is None:
            entered = self._at_once(topic, payload, key, headers, timestamp)
            if entered is not None:
                return entered
        self._gate.check_open()
        if self._traces is not None:
            headers = self._traces.carried(headers)
        if type(topic) is not str:
            topic = check_topic(topic)
        with self._turns.draw((topic,)) as turn:
            route = await self._routes.of(topic, self._clock() + self._timeout)
            row = row_of(route.space, topic, payload, key, headers, timestamp, diff)
            await turn.come()
            self._gate.check_open()
            size = size_of(row)
            await self._gate.reserve(size)
            lane = self._routes.lane_of(route, topic, row.key)
            schema = route.space.newest_schema
            if lane.queue and not self._lanes.has_room(lane, size, schema):
                await self._let_sender_run(size)
                lane = self._routes.lane_of(route, topic, row.key)
            part, place = self._lanes.add(lane, row, size, schema, sent=sent)
        if self._traces is not None:
            self._traces.join(part)
        return part, place

    def _at_once(
        self,
        topic: str,
        payload: Payload,
        key: bytes | str | None,
        headers: HeadersInput | None,
        timestamp: datetime | int | None,
    ) -> tuple[Part, int] | None:
        """Put a message that is awaited into a part, if nothing can be wrong with it and it need not wait.

        That is how most messages come that are sent side by side; any other goes through `place`.
        """
        lane = self._routes.quick.get(topic) if self._traces is None and type(topic) is str else None
        if (
            lane is None
            or type(payload) is not bytes
            or not (key is None or type(key) is bytes)
            or headers is not None
            or topic in self._turns.queues
            or not (timestamp is None or (type(timestamp) is int and FIRST_TIME <= timestamp < LAST_TIME))
        ):
            return None
        size = ROW_BYTES + len(payload) + (len(key) if key else 0)
        if self._buffer.is_full_for(size):
            return None
        part = lane.open
        if part is None:
            if lane.queue or size > self._lanes.max_bytes:
                return None
            self._gate.check_open()
            part = self._lanes.begin(lane)
        elif size > part.room or part.count >= self._lanes.max_messages:
            return None
        self._buffer.held += size
        part.room -= size
        part.sent += 1
        part.count = (place := part.count) + 1
        part.rows += (topic, payload, key, timestamp)
        return part, place

    async def _let_sender_run(self, reserved: int) -> None:
        try:
            await asyncio.sleep(0)
            self._gate.check_open()
        except BaseException:
            self._buffer.release(reserved)
            raise
