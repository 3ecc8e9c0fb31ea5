"""Schemas of spaces: the JSON form, the types, the fingerprint, and what may change. Pure.

The JSON form is ``{"columns": [{"name": "carrier", "type": "string", "nullable": false}, ...]}``;
``nullable`` is true if it is left out. An Arrow schema means the same as the JSON form with the same names
and types; what Arrow can say beyond that (metadata, dictionaries, 64-bit offsets) is dropped.

=========================== ==========================================================
type                        Arrow
=========================== ==========================================================
``int8`` ... ``int64``      the same (also large and dictionary forms of all below)
``float32`` ``float64``     the same
``bool``                    bool
``string`` ``binary``       utf8, binary
``date``                    date32
``timestamp[us]``           timestamp in microseconds, without zone: a wall clock
``timestamp[us, UTC]``      timestamp in microseconds: a moment, from whichever zone
``decimal(p, s)``           decimal128, p from 1 to 38
``list<T>``                 list of T, whose values may be null
``struct<a: T, b: T>``      struct, whose fields may be null
=========================== ==========================================================

The *fingerprint* is the first 8 bytes of BLAKE2b, as 16 hexadecimal digits, of the canonical JSON form: in
UTF-8, keys in alphabetical order, no spaces outside of types, ``nullable`` always there, types as in the
table. It stands on every entry. Versions of a space's schema only ever gain nullable columns, so an entry of
an older version reads with null there, and an older row can be written as a newer one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from streamlease.protocol.errors import InvalidOption, SchemaMismatch
from streamlease.streams.entries.message_rows import MESSAGE_SCHEMA

RESERVED = frozenset([*MESSAGE_SCHEMA.names, "cut", "values"])
"""Names that every message has anyway."""

MAX_COLUMNS = 2000
MAX_DEPTH = 16
_PLAIN: dict[str, pa.DataType] = {
    **{f"int{bits}": getattr(pa, f"int{bits}")() for bits in (8, 16, 32, 64)},
    "float32": pa.float32(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp[us]": pa.timestamp("us"),
    "timestamp[us, UTC]": pa.timestamp("us", tz="UTC"),
}
_NAMES = {type: name for name, type in _PLAIN.items()}
_KNOWN = (
    "int8, int16, int32, int64, float32, float64, bool, string, binary, date, timestamp[us], "
    "'timestamp[us, UTC]', 'decimal(p, s)', list<T> or 'struct<name: T, ...>'"
)
_FIELD = re.compile(r"\s*([^<>:,()\[\]\s]+)\s*:")
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)")
_WORD = re.compile(r"timestamp\[us(?:,\s*(UTC))?\]|[a-z0-9]+")


class Column(BaseModel):
    """One typed column; `type` is a canonical name of the table above."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    type: str
    nullable: bool = True


class Schema(BaseModel):
    """The typed columns of a space, one version of them."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    columns: tuple[Column, ...]

    @classmethod
    def of(cls, given: pa.Schema | Mapping[str, Any] | Schema) -> Schema:
        """The schema that an Arrow schema, or the JSON form as a dict, describes.

        Raises:
            InvalidOption: a name or type is not acceptable.
        """
        if isinstance(given, Schema):
            return given
        if isinstance(given, pa.Schema):
            return cls(columns=_checked([_of_field(field) for field in given]))
        columns = given.get("columns") if isinstance(given, Mapping) else None
        if not isinstance(columns, Sequence) or isinstance(columns, str) or set(given) != {"columns"}:
            raise InvalidOption(
                f"a schema is {ascii(given)[:80]}: "
                'write {"columns": [{"name": ..., "type": ..., "nullable": ...}]}'
            )
        return cls(columns=_checked([_of_json(column) for column in columns]))

    @classmethod
    def parse(cls, data: bytes) -> Schema:
        """The schema in a file: the JSON form, or Arrow IPC (a schema, file or stream).

        Raises:
            InvalidOption: it is none of these.
        """
        if data.lstrip()[:1] == b"{":
            try:
                return cls.of(json.loads(data))
            except (ValueError, RecursionError) as error:
                if isinstance(error, InvalidOption):
                    raise
                raise InvalidOption(f"the schema is no JSON ({error}): correct it") from None
        for read in (pa.ipc.open_file, pa.ipc.open_stream):
            try:
                return cls.of(read(pa.py_buffer(data)).schema)
            except (pa.ArrowException, OSError):
                continue
        try:
            return cls.of(pa.ipc.read_schema(pa.py_buffer(data)))
        except (pa.ArrowException, OSError):
            raise InvalidOption(
                f"a schema of {len(data)} bytes is neither JSON nor Arrow IPC: write "
                '{"columns": [{"name": ..., "type": ..., "nullable": ...}]}'
            ) from None

    @cached_property
    def arrow(self) -> pa.Schema:
        """The columns as an Arrow schema."""
        return pa.schema([pa.field(one.name, parse_type(one.type), one.nullable) for one in self.columns])

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits; see the head of this module."""
        canonical = json.dumps(
            self.model_dump(), sort_keys=True, separators=(",", ":"), ensure_ascii=False
        ).encode()
        return blake2b(canonical, digest_size=8).hexdigest()

    @cached_property
    def message_schema(self) -> pa.Schema:
        """The columns of a batch that a reader hands out: those of every message, and these behind them."""
        return pa.schema([*MESSAGE_SCHEMA, *self.arrow])

    def named(self, name: str) -> Column | None:
        """The column `name`, if there is one."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    def check_successor(self, newer: Schema) -> None:
        """Whether `newer` may replace this one: it has the same columns, and perhaps more nullable ones.

        Raises:
            SchemaMismatch: it may not; says why.
        """
        for column in self.columns:
            other = newer.named(column.name)
            if other is None:
                raise _no_change(f"column {column.name} would be dropped")
            if other.type != column.type:
                raise _no_change(f"column {column.name} would change from {column.type} to {other.type}")
            if other.nullable != column.nullable:
                now, then = (_nullness(one) for one in (column, other))
                raise _no_change(f"column {column.name} would change from {now} to {then}")
        for column in newer.columns:
            if self.named(column.name) is None and not column.nullable:
                raise _no_change(f"the new column {column.name} is not nullable, and older messages lack it")
        newer.check_case(self)

    def check_case(self, before: Schema | None = None) -> None:
        """Whether the columns that `before` lacks have names that differ in more than case from all others.

        Spark and many databases take names that differ in case only for one.

        Raises:
            InvalidOption: one does not.
        """
        names = [*RESERVED, *(column.name for column in self.columns)]
        others: dict[str, set[str]] = {}
        for name in names:
            others.setdefault(name.lower(), set()).add(name)
        for column in self.columns:
            alike = others[column.name.lower()] - {column.name}
            if alike and (before is None or before.named(column.name) is None):
                raise InvalidOption(
                    f"columns {min(alike)} and {column.name} differ in case only, and Spark takes them for "
                    f"one: choose another name, such as {column.name}_"
                )

    def check_wanted(self, wanted: Schema, where: str) -> None:
        """Whether a reader that wants the columns `wanted` gets them from data of this schema.

        Raises:
            SchemaMismatch: a column is missing or of another type.
        """
        for column in wanted.columns:
            there = self.named(column.name)
            if there is None:
                names = ", ".join(one.name for one in self.columns)[:200]
                raise SchemaMismatch(
                    f"{where} has no column {column.name}: it has {names}; ask for these, or leave schema out"
                )
            if there.type != column.type or (there.nullable and not column.nullable):
                raise SchemaMismatch(
                    f"column {column.name} of {where} is {there.type} ({_nullness(there)}), not "
                    f"{column.type} ({_nullness(column)}): ask for it as it is, or leave schema out"
                )


SchemaLike = Schema | Mapping[str, Any] | pa.Schema
"""The forms in which a schema may be given."""


def _nullness(column: Column) -> str:
    return "nullable" if column.nullable else "not nullable"


def _no_change(reason: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"the schema cannot change so: {reason}; only nullable columns can be added. "
        f"For anything else create another space"
    )


def _checked(columns: list[Column]) -> tuple[Column, ...]:
    if not 1 <= len(columns) <= MAX_COLUMNS:
        raise InvalidOption(f"a schema has {len(columns)} columns: it needs 1 to {MAX_COLUMNS}")
    seen: set[str] = set()
    for column in columns:
        if not 1 <= len(column.name) <= 255 or not column.name.isprintable():
            raise InvalidOption(
                f"column name {ascii(column.name)[:80]} is not acceptable: use 1 to 255 printable characters"
            )
        if column.name in RESERVED:
            raise InvalidOption(
                f"column {column.name} has the name of a column that every message has "
                f"({', '.join(sorted(RESERVED))}): choose another one, such as {column.name}_"
            )
        if column.name in seen:
            raise InvalidOption(f"column {column.name} occurs twice in the schema: each needs its own name")
        seen.add(column.name)
    return tuple(columns)


def _of_field(field: pa.Field) -> Column:
    return Column(name=field.name, type=type_name(field.type, field.name), nullable=field.nullable)


def _of_json(column: Any) -> Column:
    known = {"name", "type", "nullable"}
    if not isinstance(column, Mapping) or not {"name", "type"} <= set(column) <= known:
        raise InvalidOption(
            f'column {ascii(column)[:80]} of a schema is not of the form {{"name", "type", "nullable"}}'
        )
    name, type, nullable = column["name"], column["type"], column.get("nullable", True)
    if not isinstance(name, str) or not isinstance(type, str) or not isinstance(nullable, bool):
        raise InvalidOption(
            f"column {ascii(column)[:80]} of a schema: name and type are texts, nullable is true or false"
        )
    return Column(name=name, type=type_name(parse_type(type), name), nullable=nullable)


# ------------------------------------------------------------------------------------------------- types


def type_name(type: pa.DataType, column: str = "") -> str:
    """The canonical name of an Arrow type.

    Raises:
        InvalidOption: it is not one of the types that a schema can have.
    """
    t = pa.types
    if t.is_dictionary(type):
        return type_name(type.value_type, column)
    if t.is_large_string(type) or t.is_string_view(type):
        return "string"
    if t.is_large_binary(type) or t.is_binary_view(type):
        return "binary"
    if t.is_timestamp(type) and type.unit in ("s", "ms", "us"):
        return "timestamp[us]" if type.tz is None else "timestamp[us, UTC]"
    if t.is_decimal(type) and type.bit_width <= 128 and 0 <= type.scale <= type.precision:
        return f"decimal({type.precision}, {type.scale})"
    if t.is_list(type) or t.is_large_list(type):
        return f"list<{type_name(type.value_type, column)}>"
    if t.is_struct(type) and type.num_fields:
        fields = [type.field(place) for place in range(type.num_fields)]
        names = [field.name for field in fields]
        if len(set(names)) == len(names) and all(_FIELD.fullmatch(name + ":") for name in names):
            inner = ", ".join(f"{field.name}: {type_name(field.type, column)}" for field in fields)
            return f"struct<{inner}>"
    name = _NAMES.get(type)
    if name is None:
        raise InvalidOption(f"column {ascii(column)[:80]} has the type {type}: use {_KNOWN}")
    return name


def parse_type(text: str) -> pa.DataType:
    """The Arrow type of a name of the table above.

    Raises:
        InvalidOption: it is none.
    """
    type, rest = _parse(text, text, 0)
    if rest.strip():
        raise _unknown(text)
    return type


def _unknown(text: str) -> InvalidOption:
    return InvalidOption(f"type {ascii(text)[:80]} is unknown: use {_KNOWN}")


def _parse(text: str, whole: str, depth: int) -> tuple[pa.DataType, str]:
    """The type at the beginning of `text`, and what follows it."""
    text = text.lstrip()
    if depth > MAX_DEPTH:
        raise InvalidOption(f"type {ascii(whole)[:80]} is nested more than {MAX_DEPTH} deep: flatten it")
    if text.startswith("list<"):
        inner, rest = _parse(text[5:], whole, depth + 1)
        return pa.list_(inner), _after(">", rest, whole)
    if text.startswith("struct<"):
        fields, rest = [], "," + text[7:]
        while rest.startswith(","):
            name = _FIELD.match(rest, 1)
            if name is None:
                raise _unknown(whole)
            inner, rest = _parse(rest[name.end() :], whole, depth + 1)
            fields.append(pa.field(name.group(1), inner))
            rest = rest.lstrip()
        if len({field.name for field in fields}) < len(fields):
            raise InvalidOption(f"type {ascii(whole)[:80]} has two fields of one name: rename one")
        return pa.struct(fields), _after(">", rest, whole)
    if (decimal := _DECIMAL.match(text)) is not None:
        precision, scale = int(decimal.group(1)), int(decimal.group(2))
        if not 1 <= precision <= 38 or scale > precision:
            raise InvalidOption(f"type {decimal.group()} is out of range: 1 <= p <= 38, 0 <= s <= p")
        return pa.decimal128(precision, scale), text[decimal.end() :]
    word = _WORD.match(text)
    if word is None:
        raise _unknown(whole)
    plain = "timestamp[us, UTC]" if word.group(1) else word.group()
    if plain not in _PLAIN:
        raise _unknown(whole)
    return _PLAIN[plain], text[word.end() :]


def _after(mark: str, rest: str, whole: str) -> str:
    rest = rest.lstrip()
    if not rest.startswith(mark):
        raise _unknown(whole)
    return rest[len(mark) :]


# ---------------------------------------------------------------------------------------------- versions


class Versions:
    """All versions of a space's schema, oldest first, never none; finds them by fingerprint."""

    def __init__(self, schemas: Sequence[Schema]) -> None:
        self._schemas = tuple(schemas)
        self._by_print = {schema.fingerprint.encode(): schema for schema in schemas}

    def __iter__(self) -> Iterator[Schema]:
        return iter(self._schemas)

    def __len__(self) -> int:
        return len(self._schemas)

    @property
    def newest(self) -> Schema:
        """The version that is written now."""
        return self._schemas[-1]

    def find(self, fingerprint: bytes) -> Schema | None:
        """The version with that fingerprint."""
        return self._by_print.get(fingerprint)

    def dump(self) -> str:
        """As JSON, for :meth:`load`."""
        return json.dumps([schema.model_dump() for schema in self._schemas], separators=(",", ":"))

    @classmethod
    def load(cls, text: bytes | str) -> Versions:
        """The versions from their JSON."""
        return cls([Schema.model_validate(one) for one in json.loads(text)])


@lru_cache(maxsize=64)
def load_versions(text: bytes) -> Versions:
    """:meth:`Versions.load`, made once."""
    return Versions.load(text)
