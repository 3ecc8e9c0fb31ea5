"""Python values, and text as in JSON and CSV, as values of a schema's types. Pure.

Arrow's own conversion is lenient: it makes 1 of 1.5, and drops the unknown fields of a struct. So each value
is looked at first; what does not fit exactly is refused with its column.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import numbers
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from streamlease.protocol.errors import SchemaMismatch
from streamlease.streams.entries.schemas import Schema

Convert = Callable[[Any], Any]
Values = dict[str, Any]


def check_values(schema: Schema, values: Mapping[str, Any], *, text: bool = False) -> Values:
    """`values` by column, each as the Arrow conversion takes it; a column left out is null.

    Args:
        text: values come from JSON, CSV or plain Redis fields: numbers, times, lists and structs (as JSON),
            and base64 for binary may stand as text, and every text but that of binary as bytes.

    Raises:
        SchemaMismatch: a column is unknown, null without being nullable, or of a wrong type.
    """
    checked: Values = {}
    for name, convert, nullable in _converters(schema, text):
        value = values.get(name)
        if value is None:
            if not nullable:
                raise SchemaMismatch(f"column {name} is null or left out, and is not nullable: give a value")
        else:
            try:
                checked[name] = convert(value)
            except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
                column = schema.named(name)
                raise SchemaMismatch(
                    f"column {name} is {column.type if column else 'unknown'}, and {ascii(value)[:80]} "
                    f"does not fit: {error}"
                ) from None
    for name in values:
        if schema.named(name) is None:
            names = ", ".join(column.name for column in schema.columns)[:200]
            raise SchemaMismatch(f"there is no column {ascii(name)[:80]} in the schema: it has {names}")
    return checked


def value_size(value: Any) -> int:
    """About how many bytes a value takes."""
    if isinstance(value, str | bytes):
        return len(value) + 4
    if isinstance(value, dict):
        return sum(map(value_size, value.values()))
    if isinstance(value, list):
        return sum(map(value_size, value)) + 4
    return 16 if isinstance(value, Decimal) else 8


_CONVERTERS: dict[tuple[str, bool], tuple[tuple[str, Convert, bool], ...]] = {}
_MOST_CONVERTERS = 256


def _converters(schema: Schema, text: bool) -> tuple[tuple[str, Convert, bool], ...]:
    key = (schema.fingerprint, text)
    found = _CONVERTERS.get(key)
    if found is None:
        if len(_CONVERTERS) >= _MOST_CONVERTERS:
            _CONVERTERS.clear()
        found = _CONVERTERS[key] = tuple(
            (column.name, _converter(schema.arrow.field(column.name).type, text), column.nullable)
            for column in schema.columns
        )
    return found


def _converter(type: pa.DataType, text: bool) -> Convert:
    exact = _exact(type, text)
    if not text or pa.types.is_binary(type):
        return exact
    nested = pa.types.is_nested(type)

    def convert(value: Any) -> Any:
        if isinstance(value, bytes):
            value = value.decode()
        return exact(json.loads(value) if nested and isinstance(value, str) else value)

    return convert


def _exact(type: pa.DataType, text: bool) -> Convert:
    t = pa.types
    if t.is_integer(type):
        return _integer(type.bit_width, text)
    if t.is_floating(type):
        return _floating(type.bit_width, text)
    if t.is_boolean(type):
        return _boolean(text)
    if t.is_string(type):
        return _string
    if t.is_binary(type):
        return _binary(text)
    if t.is_date(type):
        return _date(text)
    if t.is_timestamp(type):
        return _timestamp(type.tz is not None, text)
    if t.is_decimal(type):
        return _decimal(type.precision, type.scale, text)
    if t.is_list(type):
        return _list(_converter(type.value_type, text))
    fields = [type.field(place) for place in range(type.num_fields)]
    return _struct({field.name: _converter(field.type, text) for field in fields})


def _integer(bits: int, text: bool) -> Convert:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def convert(value: Any) -> int:
        if text and isinstance(value, str):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise ValueError("it is no whole number")
        if not low <= value <= high:
            raise ValueError(f"it must be from {low} to {high}")
        return int(value)

    return convert


def _floating(bits: int, text: bool) -> Convert:
    def convert(value: Any) -> float:
        if text and isinstance(value, str):
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise ValueError("it is no number")
        number = float(value)
        if bits == 32 and math.isfinite(number) and abs(number) > 3.4028235e38:
            raise ValueError("it is too large for 32 bits")
        if isinstance(value, numbers.Integral) and int(number) != int(value):
            raise ValueError("a float does not hold it exactly")
        return number

    return convert


def _boolean(text: bool) -> Convert:
    words = {"true": True, "false": False}

    def convert(value: Any) -> bool:
        if text and isinstance(value, str) and value.lower() in words:
            return words[value.lower()]
        if not isinstance(value, bool) and type(value).__name__ not in ("bool_", "bool"):
            raise ValueError("it is neither true nor false")
        return bool(value)

    return convert


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"it is a {type(value).__name__}, not a text")
    value.encode()
    return value


def _binary(text: bool) -> Convert:
    def convert(value: Any) -> bytes:
        if text and isinstance(value, str):
            try:
                return base64.b64decode(value, validate=True)
            except binascii.Error:
                raise ValueError("it is no base64") from None
        if not isinstance(value, bytes | bytearray | memoryview):
            raise ValueError(f"it is a {type(value).__name__}, not bytes")
        return bytes(value)

    return convert


def _date(text: bool) -> Convert:
    def convert(value: Any) -> date:
        if text and isinstance(value, str):
            return date.fromisoformat(value)
        if isinstance(value, datetime) or not isinstance(value, date):
            raise ValueError(f"it is a {type(value).__name__}, not a date")
        return value

    return convert


def _timestamp(moment: bool, text: bool) -> Convert:
    def convert(value: Any) -> datetime:
        if text and isinstance(value, str):
            value = datetime.fromisoformat(value)
        if not isinstance(value, datetime):
            raise ValueError(f"it is a {type(value).__name__}, not a datetime")
        if moment != (value.tzinfo is not None):
            raise ValueError("it needs a time zone" if moment else "it must be without a time zone")
        return value.astimezone(UTC) if moment else value

    return convert


def _decimal(precision: int, scale: int, text: bool) -> Convert:
    def convert(value: Any) -> Decimal:
        if text and isinstance(value, str | float):
            try:
                value = Decimal(str(value))
            except InvalidOperation:
                raise ValueError("it is no number") from None
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            raise ValueError("give a Decimal or a whole number")
        number = Decimal(value)
        sign, digits, exponent = number.as_tuple()
        if not isinstance(exponent, int):
            raise ValueError("it is not finite")
        kept = "".join(map(str, digits)).rstrip("0") or "0"
        exponent += len(digits) - len(kept) if kept != "0" else -exponent
        if -exponent > scale or len(kept) + exponent > precision - scale:
            raise ValueError(f"it has more than {precision - scale} digits before or {scale} after the point")
        return Decimal((sign, tuple(map(int, kept)), exponent))

    return convert


def _list(inner: Convert) -> Convert:
    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise ValueError(f"it is a {type(value).__name__}, not a list")
        return [None if one is None else inner(one) for one in value]

    return convert


def _struct(fields: dict[str, Convert]) -> Convert:
    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError(f"it is a {type(value).__name__}, not a mapping")
        unknown = [name for name in value if name not in fields]
        if unknown:
            raise ValueError(f"there is no field {ascii(unknown[0])[:40]}")
        return {
            name: None if value.get(name) is None else inner(value[name]) for name, inner in fields.items()
        }

    return convert
