"""The states that the console shows, by key: what the newest look found, and how it differs from another.

=====================  =====================================================================
``server``             Redis, when it was looked at, how long that took, or why it could not be
``attention``          what needs attention, and what cannot be read
``groups``, ``spaces`` a row of each, as differences; at first the rates of the last minutes, too
``hosts``              leader hosts
``processes``          those that publish, consume or serve
``group/SUBSCRIPTION`` one group: its streams, as differences, its lag over time, what happened
``space/NAME``         one space, and the groups that read it
=====================  =====================================================================

All who follow a key share its source, so that a difference that many want is made once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from streamlease.admin.facts.rows import FactRow
from streamlease.admin.ui.board import Board
from streamlease.admin.ui.board_rows import GroupOnPage, Overview, SpaceOnPage, StreamRow
from streamlease.admin.ui.group_board import GroupBoard
from streamlease.admin.ui.message_rates import MessageRates
from streamlease.protocol.errors import InvalidInput

MOST_SERIES = 400
Document = dict[str, Any]
Difference = Callable[[Any | None, Any], Document | None]


class BoardStates:
    """The states of one board."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._sources: WeakValueDictionary[str, BoardState] = WeakValueDictionary()

    def of(self, key: str) -> BoardState:
        """Where the states of a key come from.

        Raises:
            InvalidInput: there is no such key.
        """
        found = self._sources.get(key)
        if found is None:
            found = self._sources[key] = BoardState(self._board, *self._made(key))
        return found

    def _made(self, key: str) -> tuple[Callable[[Board], Any | None], Difference]:
        kind, _, name = key.partition("/")
        if kind == "group" and name:
            return lambda board: _group(board, name), _group_difference
        if kind == "space" and name:
            return lambda board: _space(board, name), _space_difference
        if key not in _KINDS:
            known = ", ".join([*_KINDS, "group/SUBSCRIPTION", "space/NAME"])
            raise InvalidInput(f"the console has no key {ascii(key)[:80]}: it has {known}")
        return _KINDS[key]


class BoardState:
    """The states of one key: see ``StateSource``.

    Args:
        look: takes the state from the board; None: it was not looked at yet.
        difference: what makes the second of the first, or the whole; None: they are equal.
    """

    def __init__(self, board: Board, look: Callable[[Board], Any | None], difference: Difference) -> None:
        self._board = board
        self._look = look
        self._difference = difference
        self._number = -1
        self._state: Any | None = None
        self._told: tuple[Any | None, Any, bytes | None] = (None, None, None)

    def now(self) -> Any | None:
        """See ``StateSource``."""
        if not self._board.is_current:
            return None
        if self._number != self._board.number:
            self._number, self._state = self._board.number, self._look(self._board)
        return self._state

    def difference(self, before: Any | None, now: Any) -> bytes | None:
        """See ``StateSource``."""
        told = self._told
        if told[0] is not before or told[1] is not now:
            found = self._difference(before, now)
            told = self._told = before, now, None if found is None else to_bytes(found)
        return told[2]


def to_bytes(document: Document) -> bytes:
    """As JSON: plain text, whatever stands in it."""
    return json.dumps(document, separators=(",", ":"), default=str).encode()


# ------------------------------------------------------------ what concerns the whole


def whole_overview(board: Board) -> Document:
    """All that there is in one document."""
    return {**({} if board.overview is None else board.overview.as_json()), **_state(board)}


def _state(board: Board) -> Document:
    return {"error": board.trouble, "took_ms": round(board.took * 1000, 1)}


def _server(board: Board) -> Document:
    seen = board.overview
    known = {} if seen is None else {"time": seen.time, "redis": seen.redis.as_json()}
    return {**known, **_state(board)}


def _always(_: Any | None, now: Document) -> Document:
    return now


def _overview(board: Board) -> Overview | None:
    return board.overview


def _lists(*names: str) -> tuple[Callable[[Board], Any | None], Difference]:
    """Short lists, which are told whole when one of them is another one."""

    def difference(before: Overview | None, now: Overview) -> Document | None:
        if before is not None and all(getattr(before, name) == getattr(now, name) for name in names):
            return None
        return {name: _rows(getattr(now, name)) for name in names}

    return _overview, difference


def _processes_difference(before: Overview | None, now: Overview) -> Document | None:
    """Those that are shown, and how many there are."""
    counts = ("publishing", "consuming")
    if before is not None and all(
        getattr(before, name) == getattr(now, name) for name in ("processes", *counts)
    ):
        return None
    return {"processes": _rows(now.processes), **{name: getattr(now, name) for name in counts}}


def _rows(rows: Sequence[FactRow]) -> list[Document]:
    return [row.as_json() for row in rows]


# ------------------------------------------------------------ rows by name


class _Table(NamedTuple):
    rows: Mapping[str, FactRow]
    rates: MessageRates


def _groups(board: Board) -> _Table | None:
    seen = board.overview
    return None if seen is None else _Table({one.subscription: one for one in seen.groups}, board.group_rates)


def _spaces(board: Board) -> _Table | None:
    seen = board.overview
    return None if seen is None else _Table({one.name: one for one in seen.spaces}, board.space_rates)


def _table_difference(before: _Table | None, now: _Table) -> Document | None:
    if before is None:
        return {"whole": True, "rows": _rows([*now.rows.values()]), "gone": [], "series": _series(now)}
    rows = [row.as_json() for name, row in now.rows.items() if before.rows.get(name) != row]
    gone = [name for name in before.rows if name not in now.rows]
    return {"whole": False, "rows": rows, "gone": gone} if rows or gone else None


def _series(table: _Table) -> dict[str, list[float | None]]:
    """The rates of the last minutes, of those that had any."""
    known = ((name, table.rates.series(name)) for name in table.rows)
    return dict([one for one in known if any(one[1])][:MOST_SERIES])


# ------------------------------------------------------------ one space


class _SeenSpace(NamedTuple):
    row: SpaceOnPage | None
    groups: Sequence[GroupOnPage]
    series: Sequence[float | None]


def _space(board: Board, name: str) -> _SeenSpace | None:
    seen = board.overview
    if seen is None:
        return None
    row = next((one for one in seen.spaces if one.name == name), None)
    groups = [one for one in seen.groups if name in one.spaces]
    return _SeenSpace(row, groups, board.space_rates.series(name))


def _space_difference(before: _SeenSpace | None, now: _SeenSpace) -> Document | None:
    if before is not None and before[:2] == now[:2]:
        return None
    shown = {"row": None if now.row is None else now.row.as_json(), "groups": _rows(now.groups)}
    return {**shown, "series": now.series} if before is None else shown


# ------------------------------------------------------------ one group


class _SeenGroup(NamedTuple):
    group: GroupBoard
    rows: dict[str, StreamRow]
    at: int
    """The time of its last point of lag."""
    events: int
    """How many there were."""


def _group(board: Board, subscription: str) -> _SeenGroup | str:
    found = board.groups.get(subscription)
    return "" if found is None else _seen(found)


def _seen(group: GroupBoard) -> _SeenGroup:
    return _SeenGroup(group, group.rows, group.lag[-1][0] if group.lag else 0, group.written)


def _group_difference(before: _SeenGroup | str | None, now: _SeenGroup | str) -> Document | None:
    if isinstance(now, str):
        return None if before == now else {"missing": True}
    group = now.group
    known = before if isinstance(before, _SeenGroup) and before.group is group else None
    rows, at, told = ({}, 0, 0) if known is None else known[1:]
    return {
        "whole": known is None,
        "rows": [row for stream, row in now.rows.items() if rows.get(stream) is not row],
        "gone": sorted(rows.keys() - now.rows.keys()),
        "lag": [point for point in group.lag if at < point[0] <= now.at],
        "events": [event for event in group.events if told < event["number"] <= now.events],
        "summary": {} if group.summary is None else group.summary.as_json(),
    }


def whole_group(group: GroupBoard) -> Document | None:
    """One group in one document."""
    return _group_difference(None, _seen(group))


_KINDS: dict[str, tuple[Callable[[Board], Any | None], Difference]] = {
    "server": (_server, _always),
    "attention": _lists("concerns", "damaged"),
    "groups": (_groups, _table_difference),
    "spaces": (_spaces, _table_difference),
    "hosts": _lists("hosts"),
    "processes": (_overview, _processes_difference),
}
