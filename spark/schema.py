"""Which columns a reader gives: those of every message, and those of the schemas of its spaces.

A reader's columns are fixed when a query is planned. A space that gets more columns later goes on giving the
old ones; one whose columns no longer fit fails with ``SchemaMismatch``. Where a filter matches several
spaces, the typed columns are all of theirs, and null for messages of a space that lacks one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from streamlease.protocol.errors import InvalidOption, SchemaMismatch
from streamlease.protocol.topics import SharedSubscription, check_filter
from streamlease.spark import option_values as read
from streamlease.spark.connections import connection
from streamlease.spark.options import NAMES as STREAM_NAMES
from streamlease.spark.options import SourceOptions
from streamlease.streams.entries.arrays import repeated
from streamlease.streams.entries.schemas import RESERVED, Column, Schema
from streamlease.streams.redis.connection import BlockingRedis, run_blocking
from streamlease.streams.spaces.spaces import Space, SpaceStore

BATCH_NAMES = (
    "redis",
    "subscribe",
    "topics",
    "streams",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "columns",
    "startingEpoch",
    "endingEpoch",
    "asOfEpoch",
)


DIFF = "diff"

CUT = "cut"
"""The column that says in which cut a message came."""

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])

_COLUMNS = [
    StructField("topic", StringType()),
    StructField("key", BinaryType()),
    StructField("payload", BinaryType()),
    StructField("headers", ArrayType(_HEADER)),
    StructField("stream", StringType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("append_timestamp", TimestampType()),
    StructField("epoch", ArrayType(LongType())),
]


def message_fields(*, headers: bool = True, cut: bool = False) -> list[StructField]:
    """The columns of every message: those of the contract, with or without ``headers`` and ``cut``."""
    columns = [column for column in _COLUMNS if headers or column.name != "headers"]
    return [*columns, StructField(CUT, StringType())] if cut else columns


def diff_fields(spaces: Sequence[Space]) -> list[StructField]:
    """The column ``diff``, of collections only. It is there for who names it: a contract has the others."""
    return [StructField(DIFF, LongType())] if spaces and all(one.collection for one in spaces) else []


def plain_filter(subscribe: str) -> str:
    """The topic filter of a subscription, shared or plain.

    Raises:
        InvalidTopic: it is malformed.
    """
    if subscribe.startswith(("$shared/", "$queue/")):
        return SharedSubscription.parse(subscribe).filter
    return check_filter(subscribe)


def readable(options: Mapping[str, str]) -> StructType:
    """The columns that a reader with these options gives, be it a stream's or a batch's.

    Raises:
        InvalidOption, InvalidTopic: an option is unknown or unacceptable.
        UnknownSpace: no space has topics that the filter matches.
        SchemaMismatch: two spaces have different types for one column.
        StoreUnavailable, StoreRefused.
    """
    given = read.named(options, (*STREAM_NAMES, *BATCH_NAMES))
    subscribe = given.get("subscribe")
    if subscribe is None:
        raise InvalidOption(
            "option 'subscribe' is missing: name a shared subscription, such as '$shared/GROUP/FILTER', "
            "or for a batch also a filter alone"
        )
    filter = plain_filter(subscribe)
    fields = message_fields(
        headers=read.flag("includeHeaders", given.get("includeheaders", "true")),
        cut=read.flag("includeCut", given.get("includecut", "false")),
    )
    names = read.words("columns", given.get("columns", ""))
    spaces = spaces_of(connection(read.redis_url(given)), filter)
    return select([*fields, *typed_fields(spaces), *(diff_fields(spaces) if DIFF in names else [])], names)


def stream_columns(options: SourceOptions, schema: StructType | None = None) -> FrameColumns:
    """The columns of a stream's reader.

    Args:
        schema: as it was planned, or given by the user; None for the columns of every message alone.

    Raises:
        SchemaMismatch: a column is not there, or is of another type.
        UnknownSpace, StoreUnavailable, StoreRefused: only with a `schema`.
    """
    fields = message_fields(headers=options.include_headers, cut=options.include_cut)
    if schema is None:
        return FrameColumns.of(select(fields, options.columns), ())
    spaces = spaces_of(connection(options.redis), options.subscription.filter)
    check_given(schema, StructType([*fields, *typed_fields(spaces), *diff_fields(spaces)]))
    return FrameColumns.of(schema, spaces)


def spaces_of(redis: BlockingRedis, filter: str) -> list[Space]:
    """The spaces that have topics which `filter` matches, by name.

    Raises:
        InvalidTopic: the filter is malformed.
        UnknownSpace: there is none.
        Unsupported: the definition of such a space is damaged.
        StoreUnavailable, StoreRefused.
    """
    check_filter(filter)
    return run_blocking(SpaceStore(redis).look()).for_filter(filter)


def typed_fields(spaces: Iterable[Space]) -> list[StructField]:
    """The typed columns of some spaces, as Spark has them.

    Raises:
        SchemaMismatch: two spaces have different types for one column.
    """
    fields: dict[str, tuple[str, Column, bool]] = {}
    chosen = list(spaces)
    for space in chosen:
        for column in space.newest_schema.columns if space.newest_schema else ():
            name, there, _ = fields.get(column.name, (space.name, column, True))
            if there.type != column.type:
                raise SchemaMismatch(
                    f"column {column.name} is {there.type} in space {name} and {column.type} in space "
                    f"{space.name}: subscribe to one of them, or leave it out by option 'columns'"
                )
            everywhere = all(
                other.newest_schema and other.newest_schema.named(column.name) for other in chosen
            )
            fields[column.name] = (name, column, there.nullable or column.nullable or not everywhere)
    return [
        StructField(name, from_arrow_type(Schema(columns=(column,)).arrow.field(0).type, True), nullable)
        for name, (_, column, nullable) in fields.items()
    ]


def select(fields: Sequence[StructField], names: Sequence[str]) -> StructType:
    """The columns `names` of `fields`, in that order; all if no name is given.

    Raises:
        InvalidOption: there is no such column.
        SchemaMismatch: two are the same to Spark.
    """
    known = {field.name: field for field in fields}
    for name in names:
        if name not in known:
            raise InvalidOption(f"option 'columns' names {name!r}: the columns are {', '.join(known)}")
    chosen = [known[name] for name in names] if names else list(fields)
    seen: dict[str, str] = {}
    for field in chosen:
        first = seen.setdefault(field.name.lower(), field.name)
        if first != field.name:
            raise SchemaMismatch(
                f"columns {first} and {field.name} differ in case only, and Spark takes them for one: "
                f"leave one out by option 'columns', such as columns={field.name}"
            )
    return StructType(chosen)


def check_given(given: StructType, whole: StructType) -> None:
    """Whether a schema that the user or a plan gave is a part of what there is.

    Raises:
        SchemaMismatch: a column is unknown or of another type.
    """
    known = {field.name: field for field in whole.fields}
    for field in given.fields:
        there = known.get(field.name)
        if there is None or there.dataType != field.dataType:
            what = "is not there" if there is None else f"is {there.dataType.simpleString()}"
            raise SchemaMismatch(
                f"the query has column {field.name} {field.dataType.simpleString()}, and it {what}: "
                f"the columns are {', '.join(known)[:300]}; "
                f"leave .schema(...) out, or start the query anew if a space was created anew"
            )


@dataclass(frozen=True)
class FrameColumns:
    """The columns that a task gives, in Spark's Arrow types; can be pickled."""

    arrow: pa.Schema
    typed: Mapping[str, Schema]
    """By space: the typed columns that are wanted of it. A space without a schema is not in here."""
    with_diff: bool = False
    """Whether the column ``diff`` is that of collections, and none of a schema."""

    @classmethod
    def of(cls, schema: StructType, spaces: Sequence[Space]) -> FrameColumns:
        """The columns `schema` out of these spaces."""
        arrow = to_arrow_schema(schema, timezone="UTC")
        wanted = [name for name in arrow.names if name not in RESERVED]
        typed = {}
        for space in spaces:
            newest = space.newest_schema
            if newest is not None:
                columns = (newest.named(name) for name in wanted)
                typed[space.name] = Schema(columns=tuple(one for one in columns if one is not None))
        return cls(arrow, typed, DIFF in wanted and bool(diff_fields(spaces)))

    @cached_property
    def fixed(self) -> frozenset[str]:
        """The columns that every message has, of those that are wanted."""
        fixed = frozenset(name for name in self.arrow.names if name in RESERVED)
        return fixed | {DIFF} if self.with_diff else fixed

    def with_cuts(self, batch: pa.RecordBatch, cuts: Sequence[str], lengths: Sequence[int]) -> pa.RecordBatch:
        """`batch`, and in which cuts its rows are, if that is wanted: so many rows are in each of `cuts`."""
        return batch.append_column(CUT, repeated(cuts, lengths)) if CUT in self.arrow.names else batch

    def wanted(self, space: str) -> Schema | None:
        """What to ask a range reader of a stream of `space` for."""
        return self.typed.get(space)

    def shape(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch as a range reader gives it, with just these columns."""
        names = batch.schema.names
        columns = []
        for field in self.arrow:
            there = field.name in names
            column = batch.column(field.name) if there else pa.nulls(batch.num_rows, field.type)
            if column.type != field.type:
                try:
                    column = column.cast(field.type)
                except pa.ArrowException:
                    raise SchemaMismatch(
                        f"column {field.name} is {column.type}, and the query was started with {field.type}: "
                        f"start it anew"
                    ) from None
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)
