"""What stands in Spark's checkpoint: a query's identity, and its newest cut with the ranges in it.

Spark hands an offset back in three situations, and each needs all of this: as the start of the next batch
(the cut named in it went through the sink), as the end of a batch that is read again after a restart (the
ranges are read again, so the same cut gives the same rows), and to a new process (it learns who it is).

Spark writes an offset down twice per micro-batch, so the ranges are written short, about 25 bytes a stream::

    "ranges": {"flights.0": {"1": "3=17+200/5 4=90+12/7"}}

Of generation 0 of the space, the task of slot 1 reads 200 messages of stream 3 from offset 17 on, under lease
epoch 5, and 12 messages of stream 4.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from streamlease.protocol.errors import InvalidOption

FORM = 2
"""Version of this form."""


@dataclass(frozen=True, slots=True)
class SlotRange:
    """Offsets ``start <= offset < end`` of one stream, read in the task of slot `slot`."""

    stream: str
    start: int
    end: int
    lease_epoch: int
    slot: int


@dataclass(frozen=True, slots=True)
class CutOffset:
    """One offset of the source; cut 0 is the beginning of a session."""

    group: str
    session: str
    cut: int
    term: int = 0
    ranges: tuple[SlotRange, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """As Spark stores it: dicts of integers and strings only."""
        return {
            "streamlease": FORM,
            "group": self.group,
            "session": self.session,
            "cut": self.cut,
            "term": self.term,
            "ranges": _written(self.ranges),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], group: str) -> CutOffset:
        """Read what Spark hands back.

        Raises:
            InvalidOption: the checkpoint is of another group, of another source, or of a newer version.
        """
        try:
            if data["streamlease"] != FORM:
                raise ValueError(data["streamlease"])
            offset = cls(
                _text(data["group"]),
                _text(data["session"]),
                _number(data["cut"]),
                _number(data["term"]),
                _read(data["ranges"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InvalidOption(
                f"the checkpoint holds {str(data)[:100]!r}, "
                f"which is no offset of this source and version: "
                f"use another checkpointLocation"
            ) from None
        if offset.group != group:
            raise InvalidOption(
                f"the checkpoint belongs to group '{offset.group}', the query subscribes to '{group}': "
                f"use another checkpointLocation"
            )
        return offset


def _written(ranges: Iterable[SlotRange]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, list[str]]] = {}
    for part in ranges:
        family, _, shard = part.stream.rpartition(".")
        text = f"{shard}={part.start}+{part.end - part.start}/{part.lease_epoch}"
        found.setdefault(family, {}).setdefault(str(part.slot), []).append(text)
    return {
        family: {slot: " ".join(texts) for slot, texts in slots.items()} for family, slots in found.items()
    }


_RANGE = re.compile(r"([^ =]+)=([0-9]+)\+([0-9]+)/([0-9]+)", re.ASCII)


def _read(data: Mapping[str, Mapping[str, str]]) -> tuple[SlotRange, ...]:
    found = []
    for family, slots in data.items():
        for slot, texts in slots.items():
            for text in texts.split(" "):
                match = _RANGE.fullmatch(text)
                if match is None:
                    raise ValueError(text)
                start = int(match[2])
                found.append(
                    SlotRange(f"{family}.{match[1]}", start, start + int(match[3]), int(match[4]), int(slot))
                )
    return tuple(found)


def _number(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(value)
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value
