"""Where the messages of a topic go: its space, and the lane of its stream.

A look-up that Redis does not answer is repeated with growing waits until its deadline, as a write is.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import NamedTuple

from streamlease.protocol.errors import StoreUnavailable, StreamleaseError, StreamSealed
from streamlease.protocol.seldom import Seldom
from streamlease.streams.publish.lanes import Lane, Lanes
from streamlease.streams.spaces.spaces import Space, SpaceStore

MOST_ROUTES = 100_000
FIRST_WAIT = 0.05
LONGEST_WAIT = 2.0
LEAST_ATTEMPT = 1.0
"""Seconds that an attempt may take, also right before the deadline."""


_logger = logging.getLogger(__name__)

Seen = Callable[[str, str], None]
"""Told of a topic that is published to, and its space."""


def unseen(topic: str, space: str) -> None:
    """Nobody wants to know."""


class Route(NamedTuple):
    """The space of a topic, and the lane of its messages; None if that depends on the key."""

    space: Space
    lane: Lane | None


class Routes:
    """What a publisher knows of topics; forgotten when a definition changes."""

    def __init__(
        self,
        spaces: SpaceStore,
        lanes: Lanes,
        check: Callable[[Space], None],
        shown: Seen = unseen,
    ) -> None:
        self._seldom = Seldom(_logger)
        self.check = check
        """Raises ``InvalidInput`` if nothing may be sent to a space."""
        self._shown = shown
        self._spaces = spaces
        self._lanes = lanes
        self._found: dict[str, Route] = {}
        self._by_key: dict[tuple[str, bytes], Lane] = {}
        self.current: dict[str, Space] = {}
        """The definitions in use, which say where the messages of a space go."""
        self.quick: dict[str, Lane] = {}
        """The lanes of topics whose messages are payloads without a schema and need no look at the key."""

    def forget(self) -> None:
        """Look everything up again."""
        self._found.clear()
        self._by_key.clear()
        self.quick.clear()

    def forget_definitions(self) -> None:
        """Look everything up again, in Redis."""
        self.forget()
        self._spaces.forget()

    def known(self, topic: str) -> Route | None:
        """The route of `topic`, if it was looked up."""
        return self._found.get(topic)

    def entered(self, topic: str) -> Lane | None:
        """The lane of a topic that was not looked up yet, if it becomes `quick` without a look into Redis.

        Raises:
            InvalidTopic: `topic` is malformed.
            InvalidInput: nothing may be sent to its space.
        """
        space = self._spaces.at_hand(topic) if topic not in self._found else None
        if space is None or space.ended:
            return None
        self._enter(topic, space)
        return self.quick.get(topic)

    async def of(self, topic: str, deadline: float) -> Route:
        """The route of `topic`.

        Args:
            deadline: until when it is looked up, by the event loop's clock.

        Raises:
            InvalidTopic, UnknownSpace: there is none.
            InvalidInput: nothing may be sent to its space.
            StreamSealed: its space takes no more messages.
            StoreUnavailable, StoreRefused: Redis did not say.
        """
        clock = asyncio.get_running_loop().time
        wait = FIRST_WAIT
        while True:
            route = self._found.get(topic)
            if route is not None:
                return route
            space = self._spaces.at_hand(topic)
            if space is not None and not space.ended:
                return self._enter(topic, space)
            try:
                async with asyncio.timeout(max(LEAST_ATTEMPT, deadline - clock())):
                    return await self._find(topic)
            except TimeoutError:
                raise StoreUnavailable(
                    f"Redis did not say in time to which space topic {topic[:80]!a} belongs: "
                    f"nothing was sent; publish it again"
                ) from None
            except StreamleaseError as error:
                if not error.retriable or clock() + wait >= deadline:
                    raise
                text = "looking for the space of topic %s: %s (tried again)"
                self._seldom.warning(text, ascii(topic)[:80], error, kind=str(error))
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(LONGEST_WAIT, 2 * wait)

    def lane_of(self, route: Route, topic: str, key: bytes | None) -> Lane:
        """Where a message goes now: after a wait, `route` may be of a former generation."""
        space, lane = self.current.get(route.space.name, route.space), route.lane
        if lane is None and key is not None:
            lane = self._by_key.get((space.name, key))
        if lane is not None and lane.stream.generation == space.newest.number:
            return lane
        lane = self._lanes.get(space, space.stream_for(topic, key))
        if route.lane is None and key is not None:
            if len(self._by_key) >= MOST_ROUTES:
                self._by_key.clear()
            self._by_key[space.name, key] = lane
        return lane

    async def _find(self, topic: str) -> Route:
        space = await self._spaces.for_topic(topic)
        if space.ended:
            if not space.settled:
                await self._spaces.generations.settle(space.name)
            raise StreamSealed(f"space {space.name} is sealed and takes no more messages: use another space")
        return self._enter(topic, space)

    def _enter(self, topic: str, space: Space) -> Route:
        self.check(space)
        # What waits in the streams of a former generation must not be overtaken: see `Following`.
        current = self.current.get(space.name)
        if current is not None and current.newest.number != space.newest.number and current.covers(topic):
            space = current
        self.current[space.name] = space
        lane = None if space.shard_by == "key" else self._lanes.get(space, space.stream_for(topic))
        if len(self._found) >= MOST_ROUTES:
            self.forget()
        if lane is not None and space.newest_schema is None:
            self.quick[topic] = lane
        route = self._found[topic] = Route(space, lane)
        self._shown(topic, space.name)
        return route
