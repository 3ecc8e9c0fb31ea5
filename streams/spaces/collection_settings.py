"""What a space that is a collection may have, and what not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from streamlease.protocol.errors import InvalidOption, SpaceConflict
from streamlease.streams.entries.schemas import Schema


class HasKind(Protocol):
    """A space, or what is told of one."""

    @property
    def name(self) -> str: ...
    @property
    def collection(self) -> bool: ...


def check_collection(
    name: str, collection: object, schemas: Sequence[Schema], compact_after_ms: int | None
) -> None:
    """Whether a space with these schemas can be a collection, or not be one.

    Raises:
        InvalidOption: it cannot.
    """
    if type(collection) is not bool:
        raise InvalidOption(f"collection is {ascii(collection)[:80]}: use True or False")
    if collection and any(schema.named("diff") is not None for schema in schemas):
        raise InvalidOption(
            f"space {name} is a collection, and a column diff of its schema would be taken for the diff of "
            f"its messages: choose another name, such as diff_"
        )
    if collection and compact_after_ms is not None:
        raise InvalidOption(
            f"space {name} is a collection, of which snapshots are made, so its entries are never merged: "
            f"leave the age out"
        )


def check_same_kind(existing: HasKind, collection: bool) -> None:
    """Whether `existing` is a collection, or none, as wanted.

    Raises:
        SpaceConflict: it is not.
    """
    if existing.collection is not collection:
        raise SpaceConflict(
            f"space {existing.name} exists as {'a collection' if existing.collection else 'no collection'}: "
            f"use it as it is, choose another name, or delete it first"
        )
