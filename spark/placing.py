"""Rows of a DataFrame on their way into streams: which stream, which columns, how many in one entry."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from streamlease.protocol.errors import InvalidInput, UnknownSpace
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import check_topic
from streamlease.streams.entries.entries import Codec, encode_batch
from streamlease.streams.entries.message_rows import topics_of
from streamlease.streams.entries.splitting import split
from streamlease.streams.publish.staged.staging import Stager
from streamlease.streams.spaces.epoch_settings import check_plain
from streamlease.streams.spaces.spaces import Space

ENTRY_ROWS = 8192
ENTRY_BYTES = 1024 * 1024
MOST_TOPICS = 100_000
"""How many topics are remembered."""

MOST_TOLD = 1000
"""How many topics of a task are told to the driver, for the catalog."""

FIXED = ("topic", "key", "headers", "timestamp")
READ_ONLY = frozenset(["stream", "offset", "append_timestamp", "epoch", "cut"])
"""Columns that the source gives, and that no message brings along: left out."""


class Placer:
    """Puts rows into entries for the streams of their topics.

    Args:
        spaces: all definitions by name.
        topic: the topic of all rows; None if they have a column of that name.
        space: the only space that may be written to; None for any.
        epochs: whether what is staged becomes an epoch; else no space with epochs may be written to.
        suffix: what each topic gets behind its end.
    """

    def __init__(
        self,
        spaces: Mapping[str, Space],
        stager: Stager,
        topic: str | None = None,
        space: str | None = None,
        codec: Codec = "lz4",
        *,
        epochs: bool = False,
        suffix: str = "",
    ) -> None:
        self._spaces = spaces
        self._stager = stager
        self._topic = topic
        self._only = space
        self._codec: Codec = codec
        self._epochs = epochs
        self._suffix = suffix
        self._of_topic: dict[str, Space] = {}
        self.topics: dict[str, str] = {}
        """Topics that rows go to, with their spaces; bounded."""
        self._waiting: dict[StreamId, list[pa.RecordBatch]] = {}
        self._rows: dict[StreamId, int] = {}
        self._bytes: dict[StreamId, int] = {}
        if space is not None and space not in spaces:
            raise UnknownSpace(
                f"option 'space' is {space!r}, and there is none of that name; "
                f"create it: streamlease space create {space} --topics ..."
            )

    def add(self, batch: pa.RecordBatch) -> None:
        """Take some rows.

        Raises:
            InvalidInput: a topic is null or malformed, a column is missing or of a wrong type.
            UnknownSpace: a topic belongs to no space, or not to the only one that may be.
            SchemaMismatch: the columns are not those of the space.
            StoreUnavailable, StoreRefused.
        """
        if not batch.num_rows:
            return
        rows = self._prepared(batch)
        by_key = any(space.shard_by == "key" for space in self._spaces.values())
        for stream, piece in split(rows, self._place, by_key, ENTRY_BYTES):
            self._put(stream, self._columns(self._spaces[stream.space], piece))

    def finish(self) -> None:
        """Stage what waits."""
        for stream in list(self._waiting):
            self._flush(stream)

    def _prepared(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """`batch` with topics in their stored type and keys as bytes, without what is not written."""
        names = [name for name in batch.schema.names if name not in READ_ONLY]
        columns = {name: batch.column(name) for name in names}
        if len(columns) < len(names):
            raise InvalidInput(f"the columns {', '.join(names)} have two of one name: rename one")
        if self._topic is not None:
            columns["topic"] = pa.repeat(self._topic, batch.num_rows)
        columns["topic"] = topics_of(pa.RecordBatch.from_pydict({"topic": columns["topic"]}))
        if self._suffix:
            columns["topic"] = _ended_with(columns["topic"], self._suffix)
        if "key" in columns:
            columns["key"] = columns["key"].cast(pa.binary())
        return pa.RecordBatch.from_pydict(columns)

    def _place(self, topic: str, key: bytes | None) -> StreamId:
        space = self._of_topic.get(topic)
        if space is None:
            space = self._space(topic)
            if len(self._of_topic) >= MOST_TOPICS:
                self._of_topic.clear()
            self._of_topic[topic] = space
            if len(self.topics) < MOST_TOLD:
                self.topics[topic] = space.name
        return space.stream_for(topic, key)

    def _space(self, topic: str) -> Space:
        check_topic(topic)
        for space in self._spaces.values():
            if space.covers(topic):
                if self._only is not None and space.name != self._only:
                    raise UnknownSpace(
                        f"topic {ascii(topic)[:80]} belongs to space {space.name}, not to {self._only}: "
                        f"leave such rows out, or change option 'space'"
                    )
                if not self._epochs:
                    check_plain(space)
                return space
        raise UnknownSpace(
            f"no space has topics that match {ascii(topic)[:80]}; "
            f"create one: streamlease space create NAME --topics ..."
        )

    def _columns(self, space: Space, rows: pa.RecordBatch) -> pa.RecordBatch:
        names = rows.schema.names
        own = [name for name in names if name not in FIXED]
        if space.schemas:
            if "payload" in own and rows.column("payload").null_count == rows.num_rows:
                own.remove("payload")
            elif "payload" in own:
                raise InvalidInput(
                    f"space {space.name} has a schema, and the rows have a payload: "
                    f"write its columns instead ({', '.join(space.schemas[-1].arrow.names)[:200]})"
                )
            return rows.select([*(name for name in FIXED if name in names), *own])
        if len(own) != 1 or own[0] not in ("payload", "value"):
            raise InvalidInput(
                f"space {space.name} has no schema, so a message has one column payload or value, and these "
                f"rows have {', '.join(own) or 'none'}: select one, put them into one as with to_json, "
                f"or write to a space with a schema"
            )
        chosen = rows.select([*(name for name in FIXED if name in names), own[0]])
        return chosen.rename_columns([*chosen.schema.names[:-1], "payload"])

    def _put(self, stream: StreamId, rows: pa.RecordBatch) -> None:
        size = rows.nbytes
        waiting = self._waiting.setdefault(stream, [])
        full = self._rows.get(stream, 0) + rows.num_rows > ENTRY_ROWS
        if waiting and (full or self._bytes[stream] + size > ENTRY_BYTES):
            self._flush(stream)
            waiting = self._waiting.setdefault(stream, [])
        waiting.append(rows)
        self._rows[stream] = self._rows.get(stream, 0) + rows.num_rows
        self._bytes[stream] = self._bytes.get(stream, 0) + size

    def _flush(self, stream: StreamId) -> None:
        waiting = self._waiting.pop(stream)
        self._rows[stream] = self._bytes[stream] = 0
        whole = waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
        schema = self._spaces[stream.space].newest_schema
        self._stager.add(stream, encode_batch(whole, self._codec, schema))


def _ended_with(topics: pa.Array, suffix: str) -> pa.Array:
    """Each topic with the suffix; topics are few, and rows many."""
    coded = topics.dictionary_encode() if not pa.types.is_dictionary(topics.type) else topics
    names = pa.array([f"{name}{suffix}" for name in coded.dictionary.to_pylist()], coded.dictionary.type)
    ended = pa.DictionaryArray.from_arrays(coded.indices, names)
    return ended if pa.types.is_dictionary(topics.type) else ended.cast(topics.type)
