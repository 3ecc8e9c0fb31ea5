"""The catalog in Spark: option ``subscribe`` is ``$catalog/NAME``. Its options, its columns, and its rows."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from streamlease.catalog.items import ITEMS as KINDS
from streamlease.catalog.items import CatalogItem, check_collection
from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.topics import CATALOG_TOPICS
from streamlease.spark import option_values as read
from streamlease.spark.collections.collection_options import CHANGES, ITEMS
from streamlease.spark.schema import check_given, select

_NAMES = ("redis", "subscribe", "collection", "columns", "redis.timeout")
_PLAIN: dict[Any, DataType] = {
    str: StringType(),
    int: LongType(),
    bool: BooleanType(),
    float: DoubleType(),
}

Counted = tuple[CatalogItem, int]
"""An item, and how many of it there are, come, or, below 0, go."""


@dataclass(frozen=True, slots=True)
class CatalogFrame:
    """A reader of a collection of the catalog, checked; can be pickled."""

    redis: str
    collection: str
    schema: StructType
    redis_timeout_ms: int = 60_000

    @classmethod
    def of(cls, given: Mapping[str, str], schema: StructType | None, what: str) -> CatalogFrame:
        """The frame of a reader with these options, which are not case-sensitive.

        Args:
            schema: the columns that Spark wants; None: all of them.
            what: ``changes`` or ``items`` are read.

        Raises:
            InvalidOption: one is unknown, or has a value that it cannot have.
            InvalidInput: the catalog has no such collection.
            SchemaMismatch: a column of `schema` is not there, or is of another type.
        """
        options = read.named(given, _NAMES)
        named = options.get("collection", what)
        if named != what:
            kind = "a stream reads" if what == CHANGES else "a batch reads"
            raise InvalidOption(f"option 'collection' is {read.shown(named)}, and {kind} '{what}': give that")
        name = check_collection(options["subscribe"].removeprefix(CATALOG_TOPICS))
        # Before a reader is wanted, Spark does not say of which kind it will be.
        whole = _columns(
            name, options.get("collection", CHANGES), read.words("columns", options.get("columns", ""))
        )
        if schema is not None:
            check_given(schema, whole)
        timeout = read.duration("redis.timeout", options.get("redis.timeout", "60s"))
        return cls(read.redis_url(options), name, whole if schema is None else schema, timeout)

    def batch(self, counted: Iterable[Counted]) -> pa.RecordBatch:
        """The rows of items."""
        kept = set(self.schema.names)
        rows = [
            {name: value for name, value in _row(item, count).items() if name in kept}
            for item, count in counted
        ]
        return pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(self.schema, timezone="UTC"))


def catalog_columns(given: Mapping[str, str]) -> StructType:
    """The columns of a reader with these options, before it is known whether it is a stream or a table.

    Raises: as `CatalogFrame.of`.
    """
    what = {name.lower(): value for name, value in given.items()}.get("collection", CHANGES)
    if what not in (CHANGES, ITEMS):
        raise InvalidOption(
            f"option 'collection' is {read.shown(what)}: use '{CHANGES}' for a stream, '{ITEMS}' for a table"
        )
    return CatalogFrame.of(given, None, what).schema


def _columns(collection: str, what: str, names: tuple[str, ...]) -> StructType:
    fields = _fields(KINDS[collection])
    fields.append(StructField("count" if what == ITEMS else "diff", LongType()))
    return select(fields, names)


def _fields(kind: type[CatalogItem]) -> list[StructField]:
    kinds = typing.get_type_hints(kind)
    return [StructField(name, _type_of(kinds[name])) for name in kind.model_fields]


def _type_of(kind: Any) -> DataType:
    """The type in Spark of a field of an item: what it is in JSON."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    if isinstance(kind, type) and issubclass(kind, CatalogItem):
        return StructType(_fields(kind))
    parts = [one for one in typing.get_args(kind) if one not in (types.NoneType, Ellipsis)]
    if typing.get_origin(kind) is tuple and len({*parts}) == 1:
        return ArrayType(_type_of(parts[0]))
    if typing.get_origin(kind) in (types.UnionType, typing.Union) and len(parts) == 1:
        return _type_of(parts[0])
    raise TypeError(f"no type of Spark is known for {kind}")


def _row(item: CatalogItem, count: int) -> dict[str, Any]:
    return {**item.model_dump(), "count": count, "diff": count}
