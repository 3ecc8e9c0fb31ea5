"""How a publisher follows its spaces to new generations and to new versions of their schema.

When a space gets a new generation, its streams refuse what comes. The publisher goes over to the new
generation in one act, between two rounds, when none of its appends is under way: all that still waits for the
space goes to the new streams, in order, and what is submitted from then on goes behind it. So no message of a
key overtakes another one.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamlease.protocol.errors import InvalidInput, NotDurable, StoreRefused, StreamSealed, UnknownSpace
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.schemas import Versions
from streamlease.streams.entries.splitting import split
from streamlease.streams.log.log import AsyncLog, StreamPending
from streamlease.streams.log.state import lost_stream, no_stream
from streamlease.streams.publish.buffer import ROW_BYTES, Buffer, size_of
from streamlease.streams.publish.lanes import Lane, Lanes
from streamlease.streams.publish.parts import Part
from streamlease.streams.publish.routes import Routes
from streamlease.streams.publish.sending.held_lanes import HeldLanes
from streamlease.streams.spaces.spaces import Space, SpaceStore


class Following:
    """Brings what a publisher holds to where it belongs now."""

    def __init__(
        self, log: AsyncLog, spaces: SpaceStore, routes: Routes, lanes: Lanes, buffer: Buffer, held: HeldLanes
    ) -> None:
        self._log = log
        self._spaces = spaces
        self._routes = routes
        self._lanes = lanes
        self._buffer = buffer
        self._held = held

    async def mend(self, stream: StreamId, part: Part) -> bool:
        """Bring a stream, and a part whose schema it refused, to the present version; False if it cannot.

        The stream is behind right after a change of the definition; the part, if it was made before.
        """
        self._routes.forget_definitions()
        space = await self._spaces.get(stream.space)
        known = {schema.fingerprint for schema in space.schemas}
        if space.newest_schema is None or part.schema is None or part.schema.fingerprint not in known:
            return False
        await self._log.set_schemas([stream], Versions(space.schemas))
        part.raise_to(space.newest_schema)
        return True

    async def follow(self, held: Sequence[Lane]) -> None:
        """Decide what becomes of lanes whose streams take nothing. No part of this publisher is in flight."""
        for name in {lane.stream.space: None for lane in held}:
            try:
                space = await self._spaces.get(name)
                self._routes.check(space)
                stuck = [one for one in held if one.stream.space == name and _is_stuck(one, space)]
                if stuck or not space.settled:
                    space = await self._spaces.generations.settle(name, again=bool(stuck))
            except NotDurable as error:
                raise StoreRefused(f"the streams of space {name} are not changed yet: {error}") from None
            except (UnknownSpace, InvalidInput) as error:
                self._routes.current.pop(name, None)
                for lane in [one for one in held if one.stream.space == name]:
                    why = error if isinstance(error, InvalidInput) else lane.refusal
                    self._held.fail_all(lane, why or no_stream(lane.stream))
                continue
            self._go_over(space)

    def _go_over(self, space: Space) -> None:
        """From now on, messages of the space go where `space` says; also those that wait already."""
        self._routes.current[space.name] = space
        self._routes.forget()
        for lane in [one for one in self._lanes.by_stream.values() if one.stream.space == space.name]:
            if lane.stream.generation < space.newest.number:
                self.move(lane, space)
            elif isinstance(lane.refusal, UnknownSpace):
                self._held.fail_all(lane, lost_stream(lane.stream))
            elif isinstance(lane.refusal, StreamSealed):
                self._held.fail_all(lane, lane.refusal)
            else:
                self._held.release(lane)

    def move(self, lane: Lane, space: Space) -> None:
        """Take all parts of a lane of a former generation to the lanes of the newest one, in order."""
        stamped = self._lanes.stamped
        while lane.queue:
            part = lane.take()
            if part.stamp is not None:
                self._lanes.stamp(part.stamp)  # each part stays of its own epoch
            if part.maybe or not all(map(space.covers, part.topics())):
                # Written before its stream was dropped, or not; or the space was created anew.
                self._held.fail(lane, part, lane.refusal or no_stream(lane.stream))
            elif part.columnar:
                self._move_batch(part, space)
            else:
                self._move_messages(part, space)
        if stamped is not None:
            self._lanes.stamp(stamped)
        self._held.release(lane)
        self._lanes.leave(lane)

    def _move_messages(self, part: Part, space: Space) -> None:
        self._buffer.held -= part.size
        places = []
        for row in part.messages():
            lane = self._lanes.get(space, space.stream_for(row.topic, row.key))
            size = size_of(row)
            new, place = self._lanes.add(lane, row, size, part.schema, sent=part.watched)
            new.born = min(new.born, part.born)
            self._buffer.held += size
            places.append((new, place))
        part.moved([*dict.fromkeys(new for new, _ in places)], places)
        self._buffer.wake()

    def _move_batch(self, part: Part, space: Space) -> None:
        self._buffer.held -= part.size
        found = []
        pieces = split(part.record_batch(), space.stream_for, space.shard_by == "key", self._lanes.max_bytes)
        for stream, piece in pieces:
            size = piece.nbytes + ROW_BYTES
            new = self._lanes.add_batch(
                self._lanes.get(space, stream), piece, size, part.schema, watched=part.watched
            )
            new.born = part.born
            self._buffer.held += size
            found.append(new)
        part.moved(found)
        self._buffer.wake()


def _is_stuck(lane: Lane, space: Space) -> bool:
    """Whether a stream waits for what the definition says was done: a failover lost that."""
    newest = lane.stream.generation == space.newest.number
    return space.settled and newest and isinstance(lane.refusal, StreamPending)
