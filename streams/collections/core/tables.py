"""Changes as Arrow tables: adding them up, many at once. Pure.

A table has the columns topic, key, payload or the typed ones, and diff. Adding up groups rows whose values
Arrow holds for the same; rows that it cannot group (lists and structs) stay as they are, and so do all rows
if a count might not fit into 64 bits. So a table is never wrong, only longer than need be: `Multiset` says
what is one item.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from streamlease.streams.collections.core.multiset import Change, Columns, Content, Item, frozen
from streamlease.streams.entries import kernels as pc

BESIDE = ("topic", "key", "diff")
"""What each table has, whatever the items are."""

_MOST = 2**63 - 1

_MARK = "!of"
"""A column that no schema has: of which of two tables a row is."""


def added_up(table: pa.Table) -> pa.Table:
    """A table that comes to the same with fewer rows; in no order, and perhaps not with the fewest."""
    names = table.schema.names
    items = [name for name in names if name != "diff"]
    if any(pa.types.is_nested(table.schema.field(name).type) for name in items) or not _fits(table):
        return table
    grouped = table.group_by(items, use_threads=False).aggregate([("diff", "sum")])
    renamed = grouped.rename_columns(
        ["diff" if name == "diff_sum" else name for name in grouped.schema.names]
    )
    return renamed.select(names).filter(pc.not_equal(renamed.column("diff"), 0))


def taken_in(page: pa.Table, changes: pa.Table) -> tuple[pa.Table, pa.Table]:
    """A part of a multiset with the changes of its items, and the changes of other items.

    Both together come to what they came to before. What cannot be grouped stays where it is.
    """
    names = page.schema.names
    items = [name for name in names if name != "diff"]
    marked = [
        table.append_column(_MARK, pa.repeat(pa.scalar(mark), table.num_rows))
        for table, mark in ((page, 1), (changes, 0))
    ]
    whole = pa.concat_tables(marked)
    nested = any(pa.types.is_nested(whole.schema.field(name).type) for name in items)
    if nested or not changes.num_rows or not _fits(whole):
        return page, changes
    grouped = whole.group_by(items, use_threads=False).aggregate([("diff", "sum"), (_MARK, "max")])
    grouped = grouped.rename_columns(
        ["diff" if name == "diff_sum" else name for name in grouped.schema.names]
    )
    grouped = grouped.filter(pc.not_equal(grouped.column("diff"), 0))
    of_page = pc.equal(grouped.column(f"{_MARK}_max"), 1)
    return grouped.filter(of_page).select(names), grouped.filter(pc.invert(of_page)).select(names)


def summed(table: pa.Table) -> pa.Table:
    """A table with a row for each item that is there, in no order.

    Raises:
        pa.ArrowInvalid, OverflowError: a count does not fit into 64 bits.
    """
    shorter = added_up(table)
    if shorter is not table:
        return shorter
    counts: dict[Item, int] = {}
    places: dict[Item, int] = {}
    for place, change in enumerate(changes_of(table)):
        counts[change.item] = counts.get(change.item, 0) + change.diff
        places.setdefault(change.item, place)
    there = [item for item, count in counts.items() if count]
    taken = table.take(pa.array([places[item] for item in there], pa.int64()))
    diffs = pa.array([counts[item] for item in there], pa.int64())
    return taken.set_column(taken.schema.get_field_index("diff"), "diff", diffs)


def _fits(table: pa.Table) -> bool:
    """Whether no sum of diffs leaves 64 bits, whichever rows it is of."""
    extent = pc.min_max(table.column("diff"))
    least, most = extent["min"].as_py(), extent["max"].as_py()
    return least is None or max(abs(least), abs(most)) * table.num_rows <= _MOST


def changes_of(table: pa.Table | pa.RecordBatch) -> list[Change]:
    """The rows of a table."""
    topics, keys, diffs = (table.column(name).to_pylist() for name in BESIDE)
    return [
        Change(topic, key, content, diff)
        for topic, key, content, diff in zip(topics, keys, _contents(table), diffs, strict=True)
    ]


def _contents(table: pa.Table | pa.RecordBatch) -> Sequence[Content]:
    names = [name for name in table.schema.names if name not in BESIDE]
    if names == ["payload"]:
        payloads: list[bytes] = table.column("payload").to_pylist()
        return payloads
    columns = [[frozen(value) for value in table.column(name).to_pylist()] for name in names]
    rows: list[Columns] = [tuple(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return rows
