"""What a batch of a sink consists of: staged keys, with how much is in each. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from streamlease.protocol.ids import StreamId
from streamlease.streams.log.keys import sink_state
from streamlease.streams.redis.damaged import parsing

APPEND_BYTES = 16 * 1024 * 1024
"""About how many staged bytes are appended by one script."""

APPEND_KEYS = 1000
"""How many staged keys are appended by one script, at most."""


class Staged(NamedTuple):
    """One staged key: entries for one stream."""

    stream: StreamId
    token: str
    entries: int
    rows: int
    bytes: int


class Key(NamedTuple):
    """One staged key in a plan: what must be in it, or Redis lost some."""

    token: str
    entries: int
    rows: int


Parts = dict[StreamId, list[list[Key]]]
"""For each stream, parts in order: the staged keys that one script appends."""


class BatchPlan:
    """What a batch consists of.

    Args:
        tag: differs from that of a plan which another attempt made. Streams remember it with what they have,
            so that they know a batch again whose decision was lost.
        tags: those of streams that got the rows of another attempt than the one that made the plan.
    """

    def __init__(self, parts: Parts, tag: str, tags: Mapping[StreamId, str] | None = None) -> None:
        self.parts = parts
        self.tag = tag
        self.tags = {**(tags or {})}

    @classmethod
    def of(cls, staged: Sequence[Staged]) -> BatchPlan:
        """The plan that appends all `staged` in their order."""
        parts: Parts = {}
        sizes: dict[StreamId, int] = {}
        for one in staged:
            mine = parts.setdefault(one.stream, [])
            full = bool(mine) and len(mine[-1]) == APPEND_KEYS
            if not mine or full or sizes[one.stream] + one.bytes > APPEND_BYTES:
                mine.append([])
                sizes[one.stream] = 0
            mine[-1].append(Key(one.token, one.entries, one.rows))
            sizes[one.stream] += one.bytes
        tokens = " ".join(one.token for one in staged)
        return cls(parts, hashlib.sha256(tokens.encode()).hexdigest()[:16])

    def with_parts(self, parts: Parts, tags: Mapping[StreamId, str] | None = None) -> BatchPlan:
        """This plan, with other parts; streams of which nothing is left are left out."""
        left = {stream: groups for stream, groups in parts.items() if groups}
        return BatchPlan(left, self.tag, {**self.tags, **(tags or {})})

    def tag_of(self, stream: StreamId) -> str:
        """What `stream` remembers of this plan."""
        return self.tags.get(stream, self.tag)

    def rows(self, stream: StreamId) -> int:
        """How many messages `stream` gets."""
        return sum(key.rows for keys in self.parts.get(stream, ()) for key in keys)

    def tokens(self) -> Collection[tuple[StreamId, str]]:
        """All staged keys that are named."""
        return {(stream, key.token) for stream, parts in self.parts.items() for keys in parts for key in keys}

    def dump(self) -> str:
        """As text, for :meth:`load`."""
        parts = {str(stream): parts for stream, parts in self.parts.items()}
        tags = {str(stream): tag for stream, tag in self.tags.items()}
        return json.dumps({"tag": self.tag, "tags": tags, "parts": parts}, separators=(",", ":"))

    @classmethod
    def load(cls, sink: str, text: bytes) -> BatchPlan:
        """The plan of `sink` from its text.

        Raises:
            Unsupported: it cannot be read.
        """
        with parsing(f"what sink {sink} decided", sink_state(sink)):
            document = json.loads(text)
            parts = {
                StreamId.parse(stream): [[Key(*key) for key in keys] for keys in groups]
                for stream, groups in document["parts"].items()
            }
            tags = {StreamId.parse(stream): tag for stream, tag in document["tags"].items()}
            return cls(parts, document["tag"], tags)
