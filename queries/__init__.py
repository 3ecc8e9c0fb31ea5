"""Queries: programs that run on executors. A submitted program calls `join`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamlease.queries.join_query import JoinedQuery, join

__all__ = ["JoinedQuery", "join"]


def __getattr__(name: str) -> Any:
    # The command needs the names of this room, not what a program needs.
    if name in __all__:
        from streamlease.queries import join_query

        return getattr(join_query, name)
    raise AttributeError(f"module 'streamlease.queries' has no attribute '{name}'")
