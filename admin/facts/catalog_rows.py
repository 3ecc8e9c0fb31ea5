"""The catalog as ``streamlease catalog`` prints it."""

from __future__ import annotations

import functools
import operator
from typing import Any

from pydantic import Field

from streamlease.admin.facts.rows import FactRow
from streamlease.catalog.items import COUNTED, ITEMS

_AnyItem: Any = functools.reduce(operator.or_, ITEMS.values())
_AnyCounted: Any = functools.reduce(operator.or_, COUNTED.values())


class CatalogShown(FactRow):
    items: list[_AnyCounted]
    at: str
    """A cursor, to go on there with ``--follow --from``."""


class TopicsShown(FactRow):
    """The topics of a space that anybody has published to."""

    space: str
    topics: list[str]
    truncated: bool
    """There may be more."""


class CatalogItemChanged(FactRow):
    """With ``--follow``: first each item, behind the snapshot each change."""

    item: _AnyItem
    diff: int
    at: str | None = Field(default=None)
    """A cursor behind it; left out where the next line belongs to the same change."""


class CatalogSnapshotEnded(FactRow):
    """What follows came behind the point."""

    snapshot: bool
    at: str
