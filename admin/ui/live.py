"""Live updates: everything once for each viewer, and then what changed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from streamlease.admin.ui.board import Board
from streamlease.admin.ui.board_rows import Overview, StreamRow
from streamlease.admin.ui.group_board import GroupBoard
from streamlease.protocol.errors import StreamleaseError

QUIET_SECONDS = 15.0
"""After so long without news a comment goes out, so that a dead connection is noticed."""

MOST_SERIES = 400


async def events(board: Board, subscription: str | None) -> AsyncIterator[str]:
    """Server-sent events: ``overview``; once ``series``; and of one group ``group``."""
    number = -1 if not board.resting and board.overview is not None else board.number
    viewer, of_all = GroupViewer(), OverviewViewer()
    while True:
        try:
            async with asyncio.timeout(QUIET_SECONDS):
                number = await board.after(number)
        except TimeoutError:
            yield ": still here\n\n"
            continue
        except StreamleaseError:
            yield message("overview", of_all.changes(board))  # with the error, and for the last time
            return
        first = of_all.seen is None
        yield message("overview", of_all.changes(board))
        if subscription is not None:
            found = board.groups.get(subscription)
            yield message("group", {"gone": True} if found is None else viewer.changes(found))
        if first:
            yield message("series", series(board))


def series(board: Board) -> dict[str, Any]:
    """The rates of the last minutes, of those spaces and groups that had any."""
    found = {}
    for what, rates, names in (
        (
            "spaces",
            board.space_rates,
            [] if board.overview is None else [s.name for s in board.overview.spaces],
        ),
        ("groups", board.group_rates, [*board.groups]),
    ):
        known = ((name, rates.series(name)) for name in names)
        found[what] = dict([one for one in known if any(one[1])][:MOST_SERIES])
    return found


def whole_overview(board: Board) -> dict[str, Any]:
    """All that there is in one document."""
    return {**({} if board.overview is None else board.overview.as_json()), **_state(board)}


def _state(board: Board) -> dict[str, Any]:
    return {"error": board.trouble, "took_ms": round(board.took * 1000, 1)}


class OverviewViewer:
    """What one viewer was sent of the whole already."""

    def __init__(self) -> None:
        self.seen: Overview | None = None

    def changes(self, board: Board) -> dict[str, Any]:
        """What is new since the last call; at the first, everything."""
        before, now = self.seen, board.overview
        self.seen = now
        if before is None or now is None:
            return {"whole": True, **whole_overview(board)}
        changed: dict[str, Any] = {"whole": False, "time": now.time, **_state(board)}
        if now is before:
            return changed
        parts, former = now.parts(), before.parts()
        for name, rows in parts.items():
            known = former[name]
            changed[name] = [row.as_json() for key, row in rows.items() if known.get(key) != row]
            changed[f"gone_{name}"] = [key for key in known if key not in rows]
        for name in ("hosts", "processes", "concerns", "damaged"):
            if getattr(now, name) != getattr(before, name):
                changed[name] = [row.as_json() for row in getattr(now, name)]
        if now.redis != before.redis:
            changed["redis"] = now.redis.as_json()
        return changed


class GroupViewer:
    """What one viewer of a group was sent already."""

    def __init__(self) -> None:
        self._rows: dict[str, StreamRow] = {}
        self._events = -1

    def changes(self, group: GroupBoard) -> dict[str, Any]:
        """What is new since the last call; at the first, everything."""
        if self._events < 0:
            self._rows, self._events = group.rows, group.written
            return whole_group(group)
        before, self._rows = self._rows, group.rows
        events = [event for event in group.events if event["number"] > self._events]
        self._events = group.written
        return {
            "whole": False,
            "rows": [row for stream, row in group.rows.items() if before.get(stream) is not row],
            "gone": sorted(before.keys() - group.rows.keys()),
            "lag": [group.lag[-1]],
            "events": events,
            "summary": _summary(group),
        }


def whole_group(group: GroupBoard) -> dict[str, Any]:
    """One group in one document."""
    return {
        "whole": True,
        "rows": list(group.rows.values()),
        "gone": [],
        "lag": list(group.lag),
        "events": list(group.events),
        "summary": _summary(group),
    }


def _summary(group: GroupBoard) -> dict[str, Any]:
    return {} if group.summary is None else group.summary.as_json()


def message(event: str, data: dict[str, Any]) -> str:
    """A server-sent event: JSON has no line ends, whatever stands in it."""
    return f"event: {event}\ndata: {json.dumps(data, separators=(',', ':'), default=str)}\n\n"
