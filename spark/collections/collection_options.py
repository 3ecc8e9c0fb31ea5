"""Options of collections, and their columns. Option ``collection``: ``changes`` or ``items`` are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, LongType, StringType, StructField, StructType

from streamlease.protocol.epochs.order import Epoch
from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.topics import check_filter
from streamlease.spark import option_values as read
from streamlease.spark.connections import connection
from streamlease.spark.schema import check_given, select, spaces_of, typed_fields
from streamlease.streams.entries.schemas import Schema
from streamlease.streams.spaces.spaces import Space

CHANGES, ITEMS = "changes", "items"

_NAMES = ("redis", "subscribe", "collection", "columns", "failOnDataLoss", "redis.timeout")
_ONLY = {
    CHANGES: ("embeddedLeader", "maxOffsetsPerTrigger", "maxEpochsPerTrigger"),
    ITEMS: ("asOfEpoch",),
}


@dataclass(frozen=True, slots=True)
class CollectionOptions:
    """The options of a reader of a collection, checked."""

    redis: str
    filter: str
    what: str
    """``changes`` or ``items``."""
    as_of: Epoch | None = None
    columns: tuple[str, ...] = ()
    fail_on_data_loss: bool = True
    redis_timeout_ms: int = 60_000
    embedded_leader: bool = True
    max_changes: int | None = None
    max_epochs: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> CollectionOptions:
        """Read the options that Spark hands over; their names are not case-sensitive.

        Raises:
            InvalidOption: one is unknown, missing, or has a value that it cannot have.
            InvalidTopic: ``subscribe`` is malformed.
        """
        what = next((value for name, value in options.items() if name.lower() == "collection"), "")
        if what not in _ONLY:
            raise InvalidOption(
                f"option 'collection' is {read.shown(what)}: use '{CHANGES}' for a stream, '{ITEMS}' for a "
                f"table"
            )
        given = read.named(options, (*_NAMES, *_ONLY[what]))
        subscribe = given.get("subscribe")
        if subscribe is None:
            raise InvalidOption("option 'subscribe' is missing: give the filter of a collection, 'prices/#'")
        if subscribe.startswith(("$shared/", "$queue/")):
            raise InvalidOption(
                f"option 'subscribe' is {read.shown(subscribe)}, and a collection is read without a group: "
                f"give the filter alone"
            )
        return cls(
            redis=read.redis_url(given),
            filter=check_filter(subscribe),
            what=what,
            as_of=read.epoch("asOfEpoch", given),
            columns=read.words("columns", given.get("columns", "")),
            fail_on_data_loss=read.flag("failOnDataLoss", given.get("failondataloss", "true")),
            redis_timeout_ms=read.duration("redis.timeout", given.get("redis.timeout", "60s")),
            embedded_leader=read.flag("embeddedLeader", given.get("embeddedleader", "true")),
            max_changes=read.optional_number("maxOffsetsPerTrigger", given, 1),
            max_epochs=read.optional_number("maxEpochsPerTrigger", given, 1),
        )


def check_read_as(options: CollectionOptions, what: str) -> None:
    """Refuse a stream of items, and a table of changes.

    Raises:
        InvalidOption: it is one.
    """
    if options.what != what:
        kind = "a stream reads" if what == CHANGES else "a batch reads"
        raise InvalidOption(f"option 'collection' is '{options.what}', and {kind} '{what}': give that")


def collection_space(options: CollectionOptions) -> Space:
    """The collection.

    Raises:
        UnknownSpace: no space has topics that the filter matches.
        InvalidOption: it is no collection, or there are several.
        StoreUnavailable, StoreRefused.
    """
    first, *more = spaces_of(connection(options.redis), options.filter)
    if more:
        raise InvalidOption(
            f"the filter {options.filter!a} has topics of the spaces {first.name} and {more[0].name}, and "
            f"Spark reads one collection: narrow it to one of them"
        )
    if not first.collection:
        raise InvalidOption(
            f"the filter {options.filter!a} has topics of space {first.name}, which is no collection: leave "
            f"option 'collection' out, or name a space made with --collection"
        )
    if first.epochs and options.max_changes is not None:
        raise InvalidOption(
            f"option 'maxOffsetsPerTrigger' is set, and a micro-batch of space {first.name} is whole epochs: "
            f"use 'maxEpochsPerTrigger'"
        )
    if not first.epochs and options.max_epochs is not None:
        raise InvalidOption(
            f"option 'maxEpochsPerTrigger' is set, and space {first.name} has no epochs: use "
            f"'maxOffsetsPerTrigger'"
        )
    return first


def collection_columns(options: CollectionOptions, space: Space) -> StructType:
    """The columns of a reader.

    Raises:
        InvalidOption: option ``columns`` names one that is not there, or two have one name.
    """
    contents = typed_fields([space]) if space.schemas else [StructField("payload", BinaryType())]
    fields = [StructField("topic", StringType()), StructField("key", BinaryType()), *contents]
    if options.what == ITEMS:
        fields.append(StructField("count", LongType()))
    else:
        fields += [
            StructField("diff", LongType()),
            StructField("stream", StringType()),
            StructField("offset", LongType()),
            StructField("epoch", ArrayType(LongType())),
        ]
    names = [field.name for field in fields]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidOption(
            f"space {space.name} has a column {twice}, and so has every table of items: read it as a stream, "
            f"or give the space another column"
        )
    return select(fields, options.columns)


def columns_of(given: Mapping[str, str]) -> StructType:
    """The columns of a reader with these options, as `collection_columns`.

    Raises:
        InvalidOption, InvalidTopic, UnknownSpace, StoreUnavailable, StoreRefused.
    """
    options = CollectionOptions.parse(given)
    return collection_columns(options, collection_space(options))


@dataclass(frozen=True)
class CollectionFrame:
    """What a task must know; can be pickled."""

    options: CollectionOptions
    space: Space
    """As it was when the query was planned: its items have these columns for as long as it runs."""
    schema: StructType

    @classmethod
    def of(cls, given: Mapping[str, str], schema: StructType, what: str) -> CollectionFrame:
        """The frame of a reader with these options.

        Raises:
            InvalidOption, InvalidTopic: an option is unknown or unacceptable.
            SchemaMismatch: a column of `schema` is not there, or is of another type.
            UnknownSpace, StoreUnavailable, StoreRefused.
        """
        options = CollectionOptions.parse(given)
        check_read_as(options, what)
        space = collection_space(options)
        check_given(schema, collection_columns(options, space))
        return cls(options, space, schema)

    @property
    def typed(self) -> Schema | None:
        """The typed columns of its items."""
        return self.space.newest_schema

    @property
    def arrow(self) -> pa.Schema:
        """The columns in Arrow's types."""
        return to_arrow_schema(self.schema, timezone="UTC")
