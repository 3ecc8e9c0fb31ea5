"""What stands in Spark's checkpoint: a query's identity, and its newest cut with the ranges in it.

Spark hands an offset back in three situations, and each needs all of this: as the start of the next batch
(the cut named in it went through the sink), as the end of a batch that is read again after a restart (the
ranges are read again, so the same cut gives the same rows), and to a new process (it learns who it is).

Spark writes an offset down twice per micro-batch, so the ranges are written short, about 25 bytes a stream::

    "ranges": {"flights.0": "3=17+200/5 4=90+12/7"}

Of generation 0 of the space, stream 3 is read from offset 17 on, 200 messages under lease epoch 5, and stream
4 from offset 90 on, 12 messages under lease epoch 7.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamlease.protocol.cuts import NO_RANGES, CutRange, Ranges
from streamlease.protocol.errors import InvalidOption

FORM = 3
"""Version of this form."""


@dataclass(frozen=True, slots=True)
class CutOffset:
    """One offset of the source; cut 0 is the beginning of a session."""

    group: str
    session: str
    cut: int
    term: int = 0
    ranges: Ranges = NO_RANGES

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
            InvalidOption: the checkpoint is of another group, of another source, or of another version.
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


def _written(ranges: Ranges) -> dict[str, str]:
    texts: dict[str, list[str]] = {}
    for stream, lease_epoch, start, end in zip(*ranges.columns, strict=True):
        family, _, shard = stream.rpartition(".")
        text = f"{shard}={start}+{end - start}/{lease_epoch}"
        if (found := texts.get(family)) is not None:
            found.append(text)
        else:
            texts[family] = [text]
    return {family: " ".join(parts) for family, parts in texts.items()}


_RANGE = re.compile(r"([^ =]+)=([0-9]+)\+([0-9]+)/([0-9]+)", re.ASCII)


def _read(data: Mapping[str, str]) -> Ranges:
    found = []
    for family, texts in data.items():
        for text in texts.split(" "):
            match = _RANGE.fullmatch(text)
            if match is None:
                raise ValueError(text)
            start = int(match[2])
            found.append(CutRange(f"{family}.{match[1]}", int(match[4]), start, start + int(match[3])))
    return Ranges.of(found)


def _number(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(value)
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value
