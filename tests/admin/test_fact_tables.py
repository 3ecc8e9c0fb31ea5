"""Tables, ``top`` and the page are drawn from one description, and it fits the rows."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from streamlease.admin.facts import fact_tables
from streamlease.admin.facts.epochs import EpochPublisherRow
from streamlease.admin.facts.fact_tables import ON_PAGE, FactTable, Kind, TableColumn
from streamlease.admin.facts.group import BorrowerRow, GroupStatus, GroupStream
from streamlease.admin.facts.groups import GroupSummary, LeaderRow
from streamlease.admin.facts.hosts import Host
from streamlease.admin.facts.spaces import GenerationRow, SpaceGroup, SpaceRow, SpaceStatus, SpaceStream
from streamlease.admin.ui.app import STATIC, make_page
from streamlease.admin.ui.board import GroupOnPage, SpaceOnPage, StreamRow

ROWS: dict[str, type] = {
    "LISTED_GROUPS": GroupSummary,
    "GROUPS_IN_STATUS": GroupStatus,
    "GROUPS_IN_TOP": GroupOnPage,
    "GROUPS_ON_PAGE": GroupOnPage,
    "STREAMS_OF_GROUP": GroupStream,
    "STREAMS_LIVE": StreamRow,
    "BORROWERS_OF_GROUP": BorrowerRow,
    "LISTED_SPACES": SpaceRow,
    "SPACES_IN_STATUS": SpaceStatus,
    "SPACES_ON_PAGE": SpaceOnPage,
    "STREAMS_OF_SPACE": SpaceStream,
    "GROUPS_OF_SPACE": SpaceGroup,
    "EPOCH_PUBLISHERS": EpochPublisherRow,
    "HOSTS_IN_STATUS": Host,
    "HOSTS_ON_PAGE": Host,
}
BELOW: dict[str, type] = {"leader": LeaderRow, "generations": GenerationRow}
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
        assert not column.of or column.of in fields(ROWS[name])
    headings = [column.heading for column in shown]
    assert len({*headings}) == len(headings)


def test_one_field_has_one_title_and_one_side_wherever_it_is_shown() -> None:
    """But for a name, which is what the table is of, and what the page shows in fewer columns."""
    seen: dict[str, set[tuple[str, bool]]] = {}
    for name in ROWS:
        for column in getattr(fact_tables, name).all:
            if column.kind != "share" and column.field not in ("name", "host", "subscription", "leader"):
                seen.setdefault(column.field, set()).add((column.heading, column.at_right))
    assert {field: told for field, told in seen.items() if len(told) > 1} == {
        "held_by": {("Held by", False), ("Held back by", False)}
    }


def test_the_page_has_the_heads_of_its_tables_and_knows_every_kind() -> None:
    page = make_page()
    assert "{" not in page, "every place is filled"
    heads = re.findall(r"<thead><tr>(.*?)</tr></thead>", page)
    told = [re.findall(r"<th[^>]*>(.*?)</th>", head) for head in heads]
    assert told == [[column.heading for column in shown.all] for shown in ON_PAGE.values()]
    kinds = re.search(r"const KINDS = \{(.*?)\n\};", (STATIC / "app.js").read_text(), re.S)
    assert kinds is not None
    assert {*re.findall(r"^  (\w+):", kinds[1], re.M)} == {*get_args(Kind)}
    for shown in ON_PAGE.values():
        assert all(column.said is None and column.where is None for column in shown.all), "Python's alone"


def test_the_streams_of_the_page_are_lists_in_the_order_of_their_columns() -> None:
    assert tuple(column.field for column in fact_tables.STREAMS_LIVE.all) == StreamRow._fields
    assert 'data-sort="2" data-field="2" data-kind="number">Lease epoch</th>' in make_page()


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
