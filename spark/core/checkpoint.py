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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from streamlease.protocol.cuts import Columns
from streamlease.protocol.errors import InvalidOption

FORM = 2
"""Version of this form."""


class SlotRange(NamedTuple):
    """Offsets ``start <= offset < end`` of one stream, read in the task of slot `slot`."""

    stream: str
    start: int
    end: int
    lease_epoch: int
    slot: int


class SlotRanges(Columns[SlotRange]):
    """The ranges of a cut, each of another stream."""

    __slots__ = ()
    row = SlotRange

    @property
    def streams(self) -> Sequence[str]:
        """Their streams."""
        return self.columns[0]


@dataclass(frozen=True, slots=True)
class CutOffset:
    """One offset of the source; cut 0 is the beginning of a session."""

    group: str
    session: str
    cut: int
    term: int = 0
    ranges: SlotRanges = field(default=SlotRanges.of(()))

    @property
    def messages(self) -> int:
        """How many messages it holds."""
        _, starts, ends, *_ = self.ranges.columns
        return int(sum(ends) - sum(starts))

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


def _written(ranges: SlotRanges) -> dict[str, dict[str, str]]:
    texts: dict[tuple[str, int], list[str]] = {}
    for stream, start, end, lease_epoch, slot in zip(*ranges.columns, strict=True):
        family, _, shard = stream.rpartition(".")
        text = f"{shard}={start}+{end - start}/{lease_epoch}"
        if (found := texts.get((family, slot))) is not None:
            found.append(text)
        else:
            texts[family, slot] = [text]
    written: dict[str, dict[str, str]] = {}
    for (family, slot), parts in texts.items():
        written.setdefault(family, {})[str(slot)] = " ".join(parts)
    return written


_RANGE = re.compile(r"([^ =]+)=([0-9]+)\+([0-9]+)/([0-9]+)", re.ASCII)


def _read(data: Mapping[str, Mapping[str, str]]) -> SlotRanges:
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
    return SlotRanges.of(found)


def _number(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(value)
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value
