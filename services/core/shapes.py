"""Shapes of types: what of a pydantic model matters on the wire, its fingerprint, and which shapes agree.

The shape is the model's JSON schema without what only people read (titles, descriptions, defaults, names of
classes), in one order. Two programs whose models have one shape give it one fingerprint, whatever their
versions of this package.

Two shapes *agree* if each reads what the other writes: what both know has the same type, and what only one
of them knows is optional there. So a field that was added with a default agrees with the programs from before
it, in both directions; a field of another type, another constraint, or one that was added without a default
does not. Everything that has a default is written, so it does not matter who requires what both know.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from pydantic import BaseModel
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from streamlease.protocol.errors import InvalidInput

LARGEST_SHAPE = 64 * 1024
"""Bytes of a shape; a larger type is refused where it is served or called."""

_FOR_PEOPLE = frozenset(
    {"title", "description", "examples", "default", "deprecated", "readOnly", "writeOnly"}
)
_ONE = frozenset({"items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else"})
_SEVERAL = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_UNORDERED = frozenset({"anyOf", "oneOf", "allOf"})
_NAMED = frozenset({"properties", "patternProperties"})

Schema = dict[str, Any] | bool


class Shape(NamedTuple):
    """What of a type matters on the wire."""

    fingerprint: str
    text: str
    """``{"root": SCHEMA, "types": [SCHEMA...]}``; a schema refers to a type by its place."""

    @classmethod
    def parse(cls, text: str) -> Shape:
        """The shape with this text.

        Raises:
            InvalidInput: it is none.
        """
        try:
            whole = json.loads(text)
            valid = isinstance(whole["types"], list) and "root" in whole
        except (ValueError, TypeError, KeyError):
            valid = False
        if not valid:
            raise InvalidInput(f"{text[:80]!r} is no shape of a type")
        return cls(_digest(text), text)


_OF_MODELS: WeakKeyDictionary[type[BaseModel], Shape] = WeakKeyDictionary()


def shape_of(model: type[BaseModel]) -> Shape:
    """The shape of a model.

    Raises:
        InvalidInput: it has no JSON schema, or one that is too large.
    """
    known = _OF_MODELS.get(model)
    if known is not None:
        return known
    try:
        schema = model.model_json_schema()
    except (PydanticUserError, PydanticSchemaGenerationError) as error:
        why = " ".join(str(error).split())[:200]
        raise InvalidInput(f"{model.__name__} has no JSON schema, so it cannot travel: {why}") from None
    text = _text(_Reduced(schema).whole())
    if len(text) > LARGEST_SHAPE:
        raise InvalidInput(
            f"{model.__name__} has a schema of {len(text)} bytes: at most {LARGEST_SHAPE}, use smaller types"
        )
    shape = _OF_MODELS[model] = Shape(_digest(text), text)
    return shape


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


class _Reduced:
    """A schema without what only people read; referred types in the order in which they are met."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._named: dict[str, Schema] = schema.get("$defs", {})
        self._places: dict[str, int] = {}

    def whole(self) -> dict[str, Any]:
        root = self._reduce({key: value for key, value in self._schema.items() if key != "$defs"})
        types: list[Schema] = []
        while len(types) < len(self._places):
            types.append(self._reduce(self._named[[*self._places][len(types)]]))
        return {"root": root, "types": types}

    def _reduce(self, schema: Schema) -> Schema:
        if isinstance(schema, bool):
            return schema
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            return {"$ref": self._places.setdefault(name, len(self._places))}
        reduced: dict[str, Any] = {}
        for key in sorted(schema.keys() - _FOR_PEOPLE):
            value = schema[key]
            if key in _NAMED:
                reduced[key] = {name: self._reduce(value[name]) for name in sorted(value)}
            elif key in _SEVERAL:
                several = [self._reduce(one) for one in value]
                reduced[key] = sorted(several, key=_text) if key in _UNORDERED else several
            elif key in _ONE:
                reduced[key] = self._reduce(value)
            elif key == "discriminator":
                reduced[key] = value.get("propertyName")  # the rest names classes
            elif key in {"required", "enum"} or (key == "type" and isinstance(value, list)):
                reduced[key] = sorted(value, key=_text)
            else:
                reduced[key] = value
        if reduced.get("additionalProperties") is True:
            del reduced["additionalProperties"]
        if reduced.keys() == {"allOf"} and len(reduced["allOf"]) == 1:
            only: Schema = reduced["allOf"][0]
            return only
        return reduced


def difference(one: Shape, other: Shape) -> str | None:
    """Where two shapes do not agree, for people: ``x: integer here, string there``; None: they do."""
    if one.text == other.text:
        return None
    return _Comparison(json.loads(one.text), json.loads(other.text)).whole()


class _Comparison:
    """Of two shapes, here and there."""

    def __init__(self, here: dict[str, Any], there: dict[str, Any]) -> None:
        self._roots: tuple[Schema, Schema] = here["root"], there["root"]
        self._types: tuple[list[Schema], list[Schema]] = here["types"], there["types"]
        self._under_way: set[tuple[int, int]] = set()
        """Pairs of referred types that are being compared: types may refer to themselves."""

    def whole(self) -> str | None:
        return self._compare("", *self._roots)

    def _compare(self, path: str, here: Schema, there: Schema) -> str | None:
        references = _reference(here), _reference(there)
        pair = (
            (references[0], references[1])
            if references[0] is not None and references[1] is not None
            else None
        )
        if pair is None:
            return self._found(path, self._resolved(0, here), self._resolved(1, there))
        if pair in self._under_way:
            return None
        self._under_way.add(pair)
        try:
            return self._found(path, self._resolved(0, here), self._resolved(1, there))
        finally:
            self._under_way.discard(pair)

    def _resolved(self, side: int, schema: Schema) -> Schema:
        reference = _reference(schema)
        while reference is not None:
            schema = self._types[side][reference]
            reference = _reference(schema)
        return schema

    def _found(self, path: str, here: Schema, there: Schema) -> str | None:
        if isinstance(here, bool) or isinstance(there, bool):
            return None if here == there else _told(path, here, there)
        rest = (here.keys() | there.keys()) - {"required", "properties"}
        for key in sorted(rest - _SEVERAL - _ONE):
            if here.get(key) != there.get(key):
                return _told(path, here, there)
        for key in sorted(rest & (_SEVERAL | _ONE)):
            if (key in here) != (key in there):
                return _told(path, here, there)
            found = self._parts(path, key, here[key], there[key])
            if found is not None:
                return found
        return self._properties(path, here, there)

    def _parts(self, path: str, key: str, here: Any, there: Any) -> str | None:
        if key in _ONE:
            return self._compare(f"{path}[]" if key == "items" else path, here, there)
        if len(here) != len(there):
            return _told(path, {key: here}, {key: there})
        if key not in _UNORDERED:
            for place, (one, other) in enumerate(zip(here, there, strict=True)):
                found = self._compare(f"{path}[{place}]", one, other)
                if found is not None:
                    return found
            return None
        left = [*there]
        for one in here:
            partner = next((other for other in left if self._compare(path, one, other) is None), None)
            if partner is None:
                return _told(path, {key: here}, {key: there})
            left.remove(partner)
        return None

    def _properties(self, path: str, here: dict[str, Any], there: dict[str, Any]) -> str | None:
        known_here, known_there = here.get("properties", {}), there.get("properties", {})
        for name in sorted(known_here.keys() | known_there.keys()):
            at = f"{path}.{name}" if path else name
            if name in known_here and name in known_there:
                found = self._compare(at, known_here[name], known_there[name])
                if found is not None:
                    return found
                continue
            knows, lacks, where = (here, there, "here") if name in known_here else (there, here, "there")
            if name in knows.get("required", ()):
                return f"{at}: only {where}, and required"
            if lacks.get("additionalProperties", True) is not True:
                return f"{at}: only {where}, and the other takes no more fields"
        return None


def _reference(schema: Schema) -> int | None:
    return None if isinstance(schema, bool) else schema.get("$ref")


def _told(path: str, here: Any, there: Any) -> str:
    return f"{path or 'the whole'}: {_short(here)} here, {_short(there)} there"


def _short(schema: Any) -> str:
    if isinstance(schema, dict) and schema.keys() == {"type"}:
        return str(schema["type"])
    text = _text(schema)
    return text if len(text) <= 80 else f"{text[:77]}..."
