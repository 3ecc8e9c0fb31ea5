"""``spark.read.format("streamlease")``: a part of the history of topics, read once and in parallel.

What is to be read is fixed when the query is planned, by options alone: a range of offsets of each stream
(``startingOffsets`` / ``endingOffsets`` or ``startingTimestamp`` / ``endingTimestamp``), some of the streams
(``streams``), some of the topics (``topics``). A shared subscription is taken for its filter; the progress of
its group is neither used nor changed.

Spark plans the read of a frame once, and shares it among all places where the query uses the frame. So the
reader holds nothing that one of these places could have told it, such as filters
(`docs/decisions/0125-no-filters-for-a-shared-read.md`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from streamlease.protocol.errors import HistoryTruncated, InvalidOption
from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import OffsetRange
from streamlease.protocol.topics import intersect
from streamlease.spark import option_values as read
from streamlease.spark.connections import connection
from streamlease.spark.core.batch_tasks import divide, worth_a_task
from streamlease.spark.epoch_ranges import EpochRange, epoch_ends
from streamlease.spark.reading.small_ranges import read_small
from streamlease.spark.schema import (
    BATCH_NAMES,
    FrameColumns,
    check_given,
    diff_fields,
    message_fields,
    plain_filter,
    spaces_of,
    typed_fields,
)
from streamlease.streams.entries.message_rows import filter_batch
from streamlease.streams.epochs.boundary_reading import Vouched, check_there
from streamlease.streams.epochs.stored import read_newest
from streamlease.streams.log.archived import files_commands, parse_files
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.segments import read_range
from streamlease.streams.log.state import LogState, Wanted
from streamlease.streams.log.times import offsets_after
from streamlease.streams.redis.connection import BlockingRedis, ask, run_blocking
from streamlease.streams.rows.together import Shared
from streamlease.streams.spaces.definitions import Space

log = logging.getLogger(__name__)

Edge = Literal["earliest", "latest"]


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """The options of a batch reader, checked."""

    redis: str
    filter: str
    starting: Edge | Mapping[str, int] = "earliest"
    ending: Edge | Mapping[str, int] = "latest"
    topics: tuple[str, ...] = ()
    """Filters, of which a topic must match one besides `filter`; empty for all."""
    streams: tuple[str, ...] = ()
    """The only streams that are read; empty for all."""
    starting_timestamp: int | None = None
    """Milliseconds since 1970, inclusive; by append time."""
    ending_timestamp: int | None = None
    """The same, exclusive."""
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = True
    columns: tuple[str, ...] = ()
    epochs: EpochRange | None = None
    """The only epochs that are read."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> BatchOptions:
        """Read the options that Spark hands over; their names are not case-sensitive.

        Raises:
            InvalidOption: one is unknown, missing, has a value that it cannot have, or contradicts another.
            InvalidTopic: ``subscribe`` is malformed.
        """
        given = read.named(options, BATCH_NAMES)
        subscribe = given.get("subscribe")
        if subscribe is None:
            raise InvalidOption(
                "option 'subscribe' is missing: give a filter, such as 'flights/+/LAX'; if a table has it, "
                "say it in the query too, SELECT ... FROM NAME WITH (subscribe='...'), or use a view"
            )
        filter = plain_filter(subscribe)
        return cls(
            redis=read.redis_url(given),
            filter=filter,
            topics=_topics(given, filter),
            streams=read.words("streams", given.get("streams", "")),
            starting=_offsets("startingOffsets", given, "earliest", "startingTimestamp"),
            ending=_offsets("endingOffsets", given, "latest", "endingTimestamp"),
            starting_timestamp=read.moment("startingTimestamp", given),
            ending_timestamp=read.moment("endingTimestamp", given),
            min_partitions=read.optional_number("minPartitions", given, 1),
            max_records_per_partition=read.optional_number("maxRecordsPerPartition", given, 1),
            fail_on_data_loss=read.flag("failOnDataLoss", given.get("failondataloss", "true")),
            include_headers=read.flag("includeHeaders", given.get("includeheaders", "true")),
            columns=read.words("columns", given.get("columns", "")),
            epochs=EpochRange.parse(given),
        )


def _topics(given: Mapping[str, str], filter: str) -> tuple[str, ...]:
    found = read.topics("topics", given.get("topics", ""))
    for topic in found:
        if not intersect(topic, filter):
            raise InvalidOption(
                f"option 'topics' names {read.shown(topic)}, and no topic matches both that and the filter "
                f"{filter!a}, so nothing would be read: give filters of topics within the subscription"
            )
    return found


def _offsets(name: str, given: Mapping[str, str], usual: Edge, instead: str) -> Edge | Mapping[str, int]:
    text = given.get(name.lower())
    if text is None:
        return usual
    if instead.lower() in given:
        raise InvalidOption(f"options '{name}' and '{instead}' contradict each other: give one")
    if text in ("earliest", "latest"):
        if text != usual:
            raise InvalidOption(
                f"option '{name}' is {text!r}, so nothing would be read: give {usual!r}, or offsets by stream"
            )
        return usual
    return read.offsets(name, text)


class RangesPartition(InputPartition):
    """What one task reads.

    Args:
        vouched: boundaries by which the ranges were chosen: if they are there afterwards, it was theirs.
    """

    def __init__(self, ranges: Sequence[tuple[str, int, int]], vouched: Iterable[Vouched] = ()) -> None:
        self.ranges = tuple(ranges)
        self.vouched = tuple(vouched)


@dataclass(frozen=True)
class BatchReader(DataSourceReader):
    """Plans and reads. `spaces` are those that the filter matches, as they were at planning."""

    options: BatchOptions
    columns: FrameColumns
    spaces: tuple[Space, ...]

    def partitions(self) -> list[InputPartition]:
        """Ranges of offsets, divided over tasks.

        Raises:
            InvalidOption: an offset is of an unknown stream, or beyond its end.
            HistoryTruncated: retention removed what was asked for, and ``failOnDataLoss`` is set.
            StoreUnavailable, StoreRefused.
        """
        options = self.options
        # Before the ranges: else others might stand there already.
        vouched = self._newest_boundaries() if options.epochs is not None else []
        ranges, states = _ranges(self)
        worth = worth_a_task(_mean_bytes(connection(options.redis), ranges, states))
        divided = divide(ranges, options.min_partitions, options.max_records_per_partition, worth)
        return [RangesPartition(part, vouched) for part in divided] or [RangesPartition(())]

    def _newest_boundaries(self) -> list[Vouched]:
        redis = connection(self.options.redis)
        found = {one.name: run_blocking(read_newest(redis, one.name)) for one in self.spaces if one.epochs}
        return [Vouched.of(space, bound) for space, bound in found.items() if bound is not None]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition, stream by stream; streams with a few messages share batches. Runs in an
        executor's Python worker."""
        assert isinstance(partition, RangesPartition)
        redis = connection(self.options.redis)
        ranges = [self._wanted(StreamId.parse(name), start, end) for name, start, end in partition.ranges]
        for found in read_small(redis, ranges):
            for batch in [found.batch] if isinstance(found, Shared) else self._batches(redis, ranges[found]):
                chosen = filter_batch(batch, self.options.filter)
                if self.options.topics:
                    chosen = filter_batch(chosen, *self.options.topics)
                if chosen.num_rows:
                    yield self.columns.shape(chosen)
        for one in partition.vouched:
            run_blocking(check_there(redis, one, "read again"))

    def _wanted(self, stream: StreamId, start: int, end: int) -> Wanted:
        return Wanted(stream, start, end, self.columns.wanted(stream.space), self.columns.fixed)

    def _batches(self, redis: BlockingRedis, wanted: Wanted) -> Iterator[pa.RecordBatch]:
        stream, start, end, schema, columns = wanted
        while start < end:
            try:
                for batch in read_range(redis, stream, start, end, schema=schema, columns=columns):
                    start += batch.num_rows
                    yield batch
            except HistoryTruncated as error:
                if self.options.fail_on_data_loss:
                    raise error.with_remedy(
                        "give option 'failOnDataLoss' 'false' to read what is left"
                    ) from None
                log.warning("%s; offsets %d to %d are skipped", error, start, min(error.oldest, end) - 1)
                start = error.oldest


def batch_reader(schema: StructType, given: Mapping[str, str]) -> BatchReader:
    """A reader of the columns `schema`, some or all of those that there are.

    Raises:
        InvalidOption, InvalidTopic: an option is unknown or unacceptable.
        SchemaMismatch: a column is not there, or is of another type.
        UnknownSpace, StoreUnavailable, StoreRefused.
    """
    options = BatchOptions.parse(given)
    spaces = spaces_of(connection(options.redis), options.filter)
    fields = message_fields(headers=options.include_headers)
    check_given(schema, StructType([*fields, *typed_fields(spaces), *diff_fields(spaces)]))
    return BatchReader(options, FrameColumns.of(schema, spaces), tuple(spaces))


# ------------------------------------------------------------------------------------------------- ranges


def _ranges(reader: BatchReader) -> tuple[dict[StreamId, OffsetRange], dict[StreamId, LogState]]:
    """What the options ask for, of each stream; and how the streams were when that was looked up."""
    options = reader.options
    redis = connection(options.redis)
    streams = [stream for space in reader.spaces for stream in space.streams()]
    known = run_blocking(AsyncLog(redis).states(streams))
    chosen = _chosen(options, reader.spaces, known)
    states = {stream: state for stream, state in known.items() if stream in chosen}
    starts = {stream: state.floor for stream, state in states.items()}
    ends = {stream: state.next for stream, state in states.items()}
    if options.starting_timestamp is not None:
        starts = _at(reader, states, options.starting_timestamp * 1000)
    elif not isinstance(options.starting, str):
        given = _checked("startingOffsets", options.starting, known)
        starts |= _kept(given, states, fail=options.fail_on_data_loss)
    if options.ending_timestamp is not None:
        ends = _at(reader, states, options.ending_timestamp * 1000)
    elif not isinstance(options.ending, str):
        ends |= _checked("endingOffsets", options.ending, known)
    if options.epochs is not None:
        first, last = epoch_ends(redis, options.filter, reader.spaces, options.epochs)
        starts |= _kept(first, states, fail=options.fail_on_data_loss)
        ends |= {stream: min(end, ends[stream]) for stream, end in last.items() if stream in ends}
    ranges = {
        stream: OffsetRange(starts[stream], ends[stream])
        for stream in states
        if starts[stream] < ends[stream]
    }
    return ranges, states


def _mean_bytes(
    redis: BlockingRedis, ranges: Mapping[StreamId, OffsetRange], states: Mapping[StreamId, LogState]
) -> float:
    """The stored size of a message: in memory, or in the first file if none is there; 0: not known."""
    if in_memory := max((states[stream].mean_bytes for stream in ranges), default=0.0):
        return in_memory
    for stream, wanted in ranges.items():
        if states[stream].exists is not None:
            found = parse_files(stream, run_blocking(ask(redis, files_commands(stream, wanted.start, 1))))
            return found.some[0].size / (found.some[0].next - found.some[0].first) if found.some else 0.0
    return 0.0


def _chosen(options: BatchOptions, spaces: Iterable[Space], known: Collection[StreamId]) -> set[StreamId]:
    """The streams that are read: those named, and of them those that may have messages of the topics."""
    by_name = {str(stream): stream for stream in known}
    for name in options.streams:
        if name not in by_name:
            raise _no_stream("streams", name, by_name)
    named = {by_name[name] for name in options.streams} if options.streams else set(known)
    if not options.topics:
        return named
    places = {place for space in spaces for topic in options.topics for place in _places(topic, space)}
    return named & places


def _places(topic: str, space: Space) -> Iterable[StreamId]:
    """The streams of `space` that may have messages which the filter `topic` matches."""
    if "+" in topic or "#" in topic or space.shard_by == "key":
        return space.streams() if space.intersects(topic) else ()
    if not space.covers(topic):
        return ()
    return [space.stream_for(topic, None, generation) for generation in space.generations]


def _checked(name: str, given: Mapping[str, int], states: Mapping[StreamId, LogState]) -> dict[StreamId, int]:
    known = {str(stream): stream for stream in states}
    found = {}
    for text, offset in given.items():
        stream = known.get(text)
        if stream is None:
            raise _no_stream(name, text, known)
        state = states[stream]
        if offset > state.next:
            raise InvalidOption(
                f"option '{name}' has offset {offset} for stream {text}, which ends at {state.next}: "
                f"give at most {state.next}, or -1 for the end"
            )
        found[stream] = {read.EARLIEST: state.floor, read.LATEST: state.next}.get(offset, offset)
    return found


def _no_stream(option: str, name: str, known: Iterable[str]) -> InvalidOption:
    return InvalidOption(
        f"option '{option}' names {name!a}, which is no stream of the subscription: "
        f"the streams are {', '.join(known)[:200]}"
    )


def _kept(
    given: Mapping[StreamId, int], states: Mapping[StreamId, LogState], *, fail: bool
) -> dict[StreamId, int]:
    wanted = {stream: offset for stream, offset in given.items() if stream in states}
    for stream, offset in wanted.items():
        try:
            states[stream].check_exists(stream, offset)
        except HistoryTruncated as truncated:
            if fail:
                raise
            log.warning("%s", truncated)
    return {stream: max(offset, states[stream].floor) for stream, offset in wanted.items()}


def _at(reader: BatchReader, states: Mapping[StreamId, LogState], moment: int) -> dict[StreamId, int]:
    """The first offset of each stream that was appended at or after `moment` (us)."""
    redis = connection(reader.options.redis)
    try:
        return run_blocking(offsets_after(redis, dict.fromkeys(states, moment - 1)))
    except HistoryTruncated:
        if reader.options.fail_on_data_loss:
            raise
    found: dict[StreamId, int] = {}
    for stream, state in states.items():
        try:
            found |= run_blocking(offsets_after(redis, {stream: moment - 1}))
        except HistoryTruncated as error:
            log.warning("%s", error)
            found[stream] = max(error.oldest, state.floor)
    return found
