"""The catalog in the description of the gateway's interface (``gateway.open_api``)."""

from __future__ import annotations

import functools
import operator
from typing import Any

from pydantic import BaseModel

from streamlease.catalog.items import COUNTED, ITEMS
from streamlease.gateway.core.accepting import EVENTS, JSON

_AnyCounted: Any = functools.reduce(operator.or_, COUNTED.values())


class CatalogListing(BaseModel):
    """What there is, and a cursor to go on there."""

    items: list[_AnyCounted]
    at: str


CATALOG_MODELS: tuple[type[BaseModel], ...] = (CatalogListing,)


def catalog_paths(problems: dict[str, Any]) -> dict[str, Any]:
    """The paths below ``/v1/catalog/``.

    Args:
        problems: the answers that are errors, by status.
    """
    name = {"name": "name", "in": "path", "required": True, "schema": {"enum": [*ITEMS]}}
    follow = {
        "name": "follow", "in": "query", "schema": {"enum": ["", "true", "false"]},
        "description": "Each item, and then each change, as server-sent events.",
    }  # fmt: skip
    start = {
        "name": "from", "in": "query", "schema": {"type": "string", "minLength": 1},
        "description": "A cursor: only what changed behind it.",
    }  # fmt: skip
    last = {"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"}, "description": "The same."}
    listing = {"schema": {"$ref": "#/components/schemas/CatalogListing"}}
    return {
        "/v1/catalog/{name}": {
            "get": {
                "operationId": "catalog",
                "summary": "What there is of one kind, and what changes.",
                "parameters": [name, follow, start, last],
                "responses": {
                    "200": {
                        "description": "All items.",
                        "content": {JSON: listing, EVENTS: {"schema": {}}},
                    },
                    **problems,
                },
            }
        }
    }
