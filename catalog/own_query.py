"""Of which query this process is, if it is of one: its executor has said so in the environment."""

from __future__ import annotations

import os
from typing import NamedTuple

QUERY_ID = "STREAMLEASE_QUERY_ID"
QUERY_TOKEN = "STREAMLEASE_QUERY_TOKEN"


class OwnQuery(NamedTuple):
    """A query, and the token by which its programs are known."""

    query: str
    token: str


def own_query() -> OwnQuery | None:
    """The query of this process."""
    query, token = os.environ.get(QUERY_ID), os.environ.get(QUERY_TOKEN)
    return OwnQuery(query, token) if query and token else None
