"""Tables and ``top`` are drawn from one description, and it fits the rows."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from streamlease.admin.facts import fact_tables
from streamlease.admin.facts.epochs import EpochPublisherRow
from streamlease.admin.facts.fact_tables import FactTable, TableColumn
from streamlease.admin.facts.group import BorrowerRow, GroupStatus, GroupStream
from streamlease.admin.facts.groups import GroupSummary, LeaderRow
from streamlease.admin.facts.hosts import Host
from streamlease.admin.facts.spaces import SpaceGroup, SpaceRow, SpaceStatus, SpaceStream
from streamlease.admin.ui.board_rows import GroupOnPage, StreamRow

ROWS: dict[str, type] = {
    "LISTED_GROUPS": GroupSummary,
    "GROUPS_IN_STATUS": GroupStatus,
    "GROUPS_IN_TOP": GroupOnPage,
    "STREAMS_OF_GROUP": GroupStream,
    "STREAMS_LIVE": StreamRow,
    "BORROWERS_OF_GROUP": BorrowerRow,
    "LISTED_SPACES": SpaceRow,
    "SPACES_IN_STATUS": SpaceStatus,
    "STREAMS_OF_SPACE": SpaceStream,
    "GROUPS_OF_SPACE": SpaceGroup,
    "EPOCH_PUBLISHERS": EpochPublisherRow,
    "HOSTS_IN_STATUS": Host,
}
BELOW: dict[str, type] = {"leader": LeaderRow}
"""Of what kind the value of a field is into which a path goes."""


def fields(row: type) -> set[str]:
    if dataclasses.is_dataclass(row):
        return {field.name for field in dataclasses.fields(row)}
    return {*getattr(row, "model_fields", ()), *getattr(row, "_fields", ())}


def test_every_table_is_of_a_row() -> None:
    assert ROWS.keys() == {name for name, value in vars(fact_tables).items() if isinstance(value, FactTable)}


@pytest.mark.parametrize("name", ROWS)
def test_every_column_shows_a_field_of_its_row(name: str) -> None:
    shown = getattr(fact_tables, name).all
    for column in shown:
        row = ROWS[name]
        *way, last = [part for part in column.field.split(".") if part != "-1"]
        for part in way:
            assert part in fields(row), column
            row = BELOW[part]
        assert last in fields(row), column
    headings = [column.heading for column in shown]
    assert len({*headings}) == len(headings)


def test_one_field_has_one_title_and_one_side_wherever_it_is_shown() -> None:
    """But for a name, which is what the table is of."""
    seen: dict[str, set[tuple[str, bool]]] = {}
    for name in ROWS:
        for column in getattr(fact_tables, name).all:
            if column.field not in ("name", "host", "subscription", "leader"):
                seen.setdefault(column.field, set()).add((column.heading, column.at_right))
    assert {field: told for field, told in seen.items() if len(told) > 1} == {}


def test_the_streams_of_top_are_lists_in_the_order_of_their_columns() -> None:
    assert tuple(column.field for column in fact_tables.STREAMS_LIVE.all) == StreamRow._fields


def row(**values: Any) -> SimpleNamespace:
    return SimpleNamespace(**values)


def test_a_table_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    shown = FactTable(
        (
            TableColumn("Name", "name"),
            TableColumn("Leader", "leader.host"),
            TableColumn("Lag", "lag", "number", unit="seconds"),
            TableColumn("Topics", "topics", "list"),
            TableColumn(
                "Of", "by", said=lambda by, whole: f"{by} of {whole.all}", where=lambda whole: whole.all > 1
            ),
        ),
        "nothing there",
    )
    rows = [
        row(name="7", leader=None, lag=None, topics=["a", "b"], by=1),
        row(name="eight", leader=row(host="h"), lag=2.25, topics=[], by=2),
    ]
    shown.table(rows, row(all=3))
    assert capsys.readouterr().out.splitlines() == [
        "NAME    LEADER   LAG SECONDS   TOPICS   OF",
        "──────────────────────────────────────────────",
        "7       -                  -   a b      1 of 3",
        "eight   h                2.2            2 of 3",
    ]
    shown.table(rows[:1], row(all=1))
    assert capsys.readouterr().out.splitlines()[0] == "NAME   LEADER   LAG SECONDS   TOPICS"
    shown.table([], row(all=1))
    assert capsys.readouterr().out == "nothing there\n"
