"""Which types agree: the shapes of models, their fingerprints, and where they differ."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, Optional

import pytest
from pydantic import BaseModel, ConfigDict, Field, create_model

from streamlease.protocol.errors import InvalidInput
from streamlease.services.core.shapes import LARGEST_SHAPE, Shape, difference, shape_of


def model(name: str = "M", /, **fields: Any) -> type[BaseModel]:
    """A model; a field is a type, or a type and its default."""
    made: type[BaseModel] = create_model(
        name, **{field: one if isinstance(one, tuple) else (one, ...) for field, one in fields.items()}
    )
    return made


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Tree(BaseModel):
    name: str
    children: list[Tree] = []


class Named(BaseModel):
    """What people read."""

    model_config = ConfigDict(title="Else")
    x: Annotated[int, Field(title="X", description="how many", examples=[1])] = 7


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    x: int


def _tree(**more: Any) -> type[BaseModel]:
    made = create_model("Tree", name=(str, ...), children=(list["Tree"], []), **more)
    made.model_rebuild(_types_namespace={"Tree": made})
    return made


INNER, NEWER_INNER = model("Inner", a=int), model("Inner", a=int, b=(str, ""))

AGREE = {
    "the same": (model(x=int), model(x=int)),
    "another name": (model("A", x=int), model("B", x=int)),
    "another order": (model(x=int, y=str), model(y=str, x=int)),
    "what people read": (Named, model(x=(int, 3))),
    "a field more, with a default": (model(x=int), model(x=int, y=(str, "a"))),
    "fields more on both sides": (model(x=int, z=(int, 1)), model(x=int, y=(str, "a"))),
    "a default more": (model(x=int), model(x=(int, 1))),
    "an inner field more": (model(x=INNER), model(x=NEWER_INNER)),
    "in a list": (model(x=list[INNER]), model(x=list[NEWER_INNER])),
    "in a dictionary": (model(x=dict[str, INNER]), model(x=dict[str, NEWER_INNER])),
    "in a choice": (model(x=INNER | None), model(x=NEWER_INNER | None)),
    "a choice in another order": (model(x=int | str), model(x=str | int)),
    "another way to write it": (model(x=Optional[int]), model(x=int | None)),  # noqa: UP045
    "a type that holds itself": (Tree, _tree()),
    "the same, with a field more": (Tree, _tree(more=(int, 1))),
    "an enumeration in another order": (model(x=Literal["a", "b"]), model(x=Literal["b", "a"])),
    "an enumeration by its values": (model(x=Colour), model(x=Literal["red", "blue"])),
}

DIFFER = {
    "another type": (model(x=int), model(x=str), "x: integer here, string there"),
    "a number": (model(x=int), model(x=float), "x: integer here, number there"),
    "a field that is required": (model(x=int), model(x=int, y=str), "y: only there, and required"),
    "the other way round": (model(x=int, y=str), model(x=int), "y: only here, and required"),
    "nothing in common": (model(x=int), model(y=int), "x: only here, and required"),
    "null": (model(x=int), model(x=int | None), 'x: integer here, {"anyOf":['),
    "a limit": (model(x=int), model(x=Annotated[int, Field(gt=0)]), 'x: integer here, {"exclusiveMinimum":0'),
    "a format": (model(x=str), model(x=datetime), 'x: string here, {"format":"date-time"'),
    "in a list": (model(x=list[int]), model(x=list[str]), "x[]: integer here, string there"),
    "an inner field": (model(x=INNER), model(x=model("Inner", a=str)), "x.a: integer here, string there"),
    "a value more": (model(x=Literal["a", "b"]), model(x=Literal["a", "b", "c"]), "x: "),
    "what takes no more": (Strict, model(x=int, y=(int, 1)), "the whole: "),
    "in a tree": (Tree, _tree(more=int), "more: only there, and required"),
    "one of a choice": (model(x=int | str), model(x=int | bool), "x: "),
    "more in a choice": (model(x=int | str), model(x=int | str | None), "x: "),
    "money": (model(x=Decimal), model(x=float), "x: "),
}  # fmt: skip


@pytest.mark.parametrize("case", AGREE)
def test_what_agrees(case: str) -> None:
    here, there = map(shape_of, AGREE[case])
    assert difference(here, there) is None
    assert difference(there, here) is None


@pytest.mark.parametrize("case", DIFFER)
def test_what_does_not_agree_and_where(case: str) -> None:
    one, other, says = DIFFER[case]
    here, there = shape_of(one), shape_of(other)
    found = difference(here, there)
    assert found is not None
    assert found.startswith(says), found
    assert difference(there, here) is not None
    assert here.fingerprint != there.fingerprint


def test_a_fingerprint_is_of_the_shape_and_of_nothing_else() -> None:
    assert shape_of(Named).fingerprint == shape_of(model("Other", x=(int, 8))).fingerprint
    assert shape_of(model(x=int)).fingerprint != shape_of(model(x=int, y=(int, 1))).fingerprint
    shape = shape_of(model(x=int))
    assert (
        shape.text
        == '{"root":{"properties":{"x":{"type":"integer"}},"required":["x"],"type":"object"},"types":[]}'
    )
    assert shape.fingerprint == "674cc3979ee41493", "it is on the wire: other versions must find the same"


def test_a_field_may_have_the_name_of_what_people_read() -> None:
    here, there = shape_of(model(title=int, description=str)), shape_of(model(title=str, description=str))
    assert difference(here, there) == "title: integer here, string there"


def test_a_shape_is_read_back() -> None:
    shape = shape_of(Tree)
    assert Shape.parse(shape.text) == shape
    assert shape_of(Tree) is shape, "it is made once"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"root":{}}', '{"root":{},"types":3}', "nan"])
def test_what_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is no shape of a type"):
        Shape.parse(text)


def test_what_cannot_travel_is_refused() -> None:
    class Opaque:
        pass

    with pytest.raises(InvalidInput, match="Holder has no JSON schema, so it cannot travel"):
        shape_of(create_model("Holder", __config__=ConfigDict(arbitrary_types_allowed=True), x=(Opaque, ...)))
    wide = model("Wide", **{f"field_{n}": (int, 1) for n in range(LARGEST_SHAPE // 20)})
    with pytest.raises(InvalidInput, match=r"Wide has a schema of .* bytes: at most 65536"):
        shape_of(wide)
