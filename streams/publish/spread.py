"""Lists of messages for many streams: each message joins at once what waits for its stream.

To make columns of a list, and to divide them by stream, pays where a stream gets many of its rows. Where it
gets a few, each message costs less as ``submit`` puts it: into the open part of the lane of its topic. That
is done in one go, without a wait, or not at all: a list that needs a look-up, a turn, room in the buffer, or
a value of another type converted, becomes columns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any

from streamlease.streams.collecting import collector_at_rest
from streamlease.streams.entries.message_rows import FIRST_TIME, LAST_TIME
from streamlease.streams.publish.buffer import ROW_BYTES
from streamlease.streams.publish.gate import Gate
from streamlease.streams.publish.inputs import Payload
from streamlease.streams.publish.lanes import Lane, Lanes
from streamlease.streams.publish.parts import Part
from streamlease.streams.publish.receipts import Bundle
from streamlease.streams.publish.turns import Turn

FEW = 64
"""So few rows of a stream join the messages that wait for it already; more are a part of their own."""

FEW_BYTES = 16 * 1024
"""The same for their bytes."""

HEAD = 1024
"""So many messages of a list show whether the others are worth a look."""


class Spread:
    """Puts lists of messages into the lanes of a publisher, message by message.

    Args:
        quick: the lanes of topics whose messages are payloads and need no look at the key.
        busy: topics about which a call is under way, which must not be overtaken.
    """

    def __init__(
        self, gate: Gate, lanes: Lanes, quick: Mapping[str, Lane], busy: Mapping[str, deque[Turn]]
    ) -> None:
        self._gate = gate
        self._lanes = lanes
        self._quick = quick
        self._busy = busy

    def take(
        self,
        topics: Sequence[str],
        payloads: Sequence[Payload],
        keys: Sequence[bytes | str | None] | None,
        timestamps: Sequence[object] | None,
        watched: bool,
    ) -> list[Bundle] | None:
        """Take messages that are given column by column, as many in each; their pieces.

        None if they are to become columns: then none of them was taken.

        Args:
            watched: somebody waits for every piece, so that an error needs no other way to be seen.
        """
        with collector_at_rest(len(payloads)):
            if not self._is_wide(topics[:HEAD]):
                return None
            homes = [lane for lane in map(self._quick.get, topics) if lane is not None]
            streams = len({*homes})
            if len(homes) < len(topics) or len(homes) > FEW * streams:
                return None
            sizes = _sizes(payloads, keys)
            if sizes is None or not _are_times(timestamps) or not self._busy.keys().isdisjoint(topics):
                return None
            size = sum(sizes)
            if size > FEW_BYTES * streams or max(sizes) > self._lanes.max_bytes:
                return None
            if not self._gate.enters(size):
                return None
            return self._put(homes, sizes, (topics, payloads, keys, timestamps), watched)

    def _is_wide(self, topics: Sequence[str]) -> bool:
        """Whether such topics, all of them known, have a stream for each few of them."""
        homes = {*map(self._quick.get, topics)}
        return bool(homes) and None not in homes and len(topics) <= FEW * len(homes)

    def _put(
        self,
        homes: Sequence[Lane],
        sizes: Sequence[int],
        columns: tuple[Sequence[str], Sequence[Payload], Sequence[Any] | None, Sequence[Any] | None],
        watched: bool,
    ) -> list[Bundle]:
        topics, payloads, keys, timestamps = columns
        begin, most = self._lanes.begin, self._lanes.max_messages
        places: dict[Part, int] = {}
        nothing = [None] * len(homes)
        rows = zip(homes, sizes, topics, payloads, keys or nothing, timestamps or nothing, strict=True)
        for lane, size, topic, payload, key, moment in rows:
            part = lane.open
            if part is None or size > part.room or part.count >= most:
                part = begin(lane)
            if part not in places:
                places[part] = part.count
            part.room -= size
            part.count += 1
            part.rows += (topic, payload, key, moment)
        if watched:
            for part, place in places.items():
                part.sent += part.count - place
        return [(part, place, part.count - place) for part, place in places.items()]


def _sizes(payloads: Sequence[Payload], keys: Sequence[bytes | str | None] | None) -> list[int] | None:
    """What each message counts for in the buffer; None if a value is not of bytes yet."""
    if {*map(type, payloads)} != {bytes}:
        return None
    if keys is None:
        return [ROW_BYTES + len(payload) for payload in payloads]
    if not {*map(type, keys)} <= {bytes, NoneType}:
        return None
    return [
        ROW_BYTES + len(payload) + (len(key) if key is not None else 0)
        for payload, key in zip(payloads, keys, strict=True)
    ]


def _are_times(timestamps: Sequence[object] | None) -> bool:
    """Whether all of them, if there are any, are event times in microseconds since 1970, or None."""
    if timestamps is None:
        return True
    if not {*map(type, timestamps)} <= {int, NoneType}:
        return False
    given = [moment for moment in timestamps if type(moment) is int]
    return not given or (min(given) >= FIRST_TIME and max(given) < LAST_TIME)
