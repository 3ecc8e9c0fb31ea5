"""Putting one message into a part, whatever it is: what ``submit`` and ``send`` do not do by themselves."""

from __future__ import annotations

import asyncio
from datetime import datetime

from streamlease.protocol.topics import check_topic
from streamlease.streams.entries.entries import HeadersInput
from streamlease.streams.publish.buffer import Buffer, size_of
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

    async def _let_sender_run(self, reserved: int) -> None:
        try:
            await asyncio.sleep(0)
            self._gate.check_open()
        except BaseException:
            self._buffer.release(reserved)
            raise
