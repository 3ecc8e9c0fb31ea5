"""The columns in which facts are shown: one description for the command's tables and ``top``.

A column names the field of the row that it shows. ``--json`` prints the rows themselves, so a table and a
document show the same value; ``tests/admin/test_fact_tables.py`` finds each in its row. The console has its
own tables (``ui/static``), whose cells are links, states and curves; the rows are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Literal

from streamlease.admin.output import aligned

Kind = Literal["text", "number", "list"]
"""``list``: texts, side by side. Numbers stand at the right."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column of a table."""

    title: str
    field: str
    """Path of the value in the row: ``name``, or ``leader.host``. Below a value that is None all is None."""
    kind: Kind = "text"
    unit: str = ""
    """Stands behind the title."""
    said: Callable[[Any, Any], Any] | None = None
    """The value as people read it, made of the value and of the fact that the table is of."""
    where: Callable[[Any], bool] | None = None
    """In the tables of which facts it is shown; None: in all."""

    @property
    def heading(self) -> str:
        """Title and unit."""
        return f"{self.title} {self.unit}".rstrip()

    @property
    def at_right(self) -> bool:
        """Whether its cells stand at the right."""
        return self.kind == "number"

    def getter(self, fact: Any) -> Callable[[Any], Any]:
        """Gives the cell of a row in a table of `fact`."""
        said = self.said
        if said is not None:
            return lambda row: said(_at(row, self.field), fact)
        if self.kind == "list":
            return lambda row: " ".join(_at(row, self.field))
        return attrgetter(self.field) if "." not in self.field else lambda row: _at(row, self.field)


def _at(row: Any, path: str) -> Any:
    for name in path.split("."):
        if row is None:
            return None
        row = getattr(row, name)
    return row


@dataclass(frozen=True, slots=True)
class FactTable:
    """The columns of one table.

    Args:
        empty: what the command says where there are no rows.
    """

    all: tuple[TableColumn, ...]
    empty: str = ""

    def cells(self, rows: Iterable[Any], fact: Any = None) -> tuple[list[TableColumn], list[list[Any]]]:
        """The columns that are shown in a table of `fact`, and under them the cells of each row."""
        shown = [one for one in self.all if one.where is None or one.where(fact)]
        getters = [one.getter(fact) for one in shown]
        return shown, [[get(row) for get in getters] for row in rows]

    def table(self, rows: Iterable[Any], fact: Any = None) -> None:
        """The table of the command."""
        shown, cells = self.cells(rows, fact)
        aligned([one.heading.upper() for one in shown], cells, [one.at_right for one in shown], self.empty)


# ------------------------------------------------------------ groups

SUBSCRIPTION = TableColumn("Subscription", "subscription")
STATE = TableColumn("State", "state")
LEADER = TableColumn("Leader", "leader.host")
TERM = TableColumn("Term", "term", "number")
BORROWERS = TableColumn("Borrowers", "borrowers", "number")
HELD = TableColumn("Held", "held", "number")
STREAMS = TableColumn("Streams", "streams", "number")
MOVES = TableColumn("Moves", "moves", "number")
LAG = TableColumn("Lag", "lag", "number")
LAG_SECONDS = TableColumn("Lag", "lag_seconds", "number", unit="seconds")

LISTED_GROUPS = FactTable(
    (SUBSCRIPTION, STATE, LEADER, TERM, STREAMS, LAG, LAG_SECONDS),
    "there are no groups: subscribe, or use 'streamlease group declare SUB'",
)
GROUPS_IN_STATUS = FactTable(
    (SUBSCRIPTION, STATE, LEADER, TERM, BORROWERS, STREAMS, LAG),
    "no groups: subscribe, or use 'streamlease group declare SUB'",
)
_LED_BY = replace(LEADER, field="leader")
GROUPS_IN_TOP = FactTable((SUBSCRIPTION, _LED_BY, TERM, BORROWERS, HELD, STREAMS, MOVES, LAG))

# ------------------------------------------------------------ streams and borrowers of a group

STREAM = TableColumn("Stream", "stream")
OWNER = TableColumn("Owner", "owner")
LEASE_EPOCH = TableColumn("Lease epoch", "lease_epoch", "number")
COMMITTED = TableColumn("Committed", "committed", "number")
NEXT = TableColumn("Next", "next", "number")

STREAMS_OF_GROUP = FactTable(
    (
        STREAM, OWNER, LEASE_EPOCH, STATE, TableColumn("Since", "since"), COMMITTED, NEXT, LAG, LAG_SECONDS,
        TableColumn("Why", "why"),
    ),
    "it has no streams",
)  # fmt: skip
STREAMS_LIVE = FactTable((STREAM, OWNER, LEASE_EPOCH, STATE, COMMITTED, NEXT, LAG))
"""In ``top``."""

BORROWERS_OF_GROUP = FactTable(
    (
        TableColumn("Borrower", "name"),
        TableColumn("Query", "query"),
        TableColumn("Id", "id"),
        TableColumn("Host", "host"),
        STREAMS,
        TableColumn("Last seen", "last_seen"),
        TableColumn("Note", "drained", said=lambda drained, _: "drained" if drained else ""),
    ),
    "it has no borrowers",
)

# ------------------------------------------------------------ spaces

SPACE = TableColumn("Space", "name")
TOPICS = TableColumn("Topics", "topics", "list")
MESSAGES = TableColumn("Messages", "messages", "number")
BYTES = TableColumn("Bytes", "bytes", "number")

LISTED_SPACES = FactTable(
    (SPACE, STREAMS, TOPICS),
    "there are no spaces: create one with 'streamlease space create NAME --topics FILTER'",
)
SPACES_IN_STATUS = FactTable(
    (SPACE, STREAMS, MESSAGES, TOPICS),
    "no spaces: create one with 'streamlease space create NAME --topics FILTER'",
)

EPOCH_PUBLISHERS = FactTable(
    (
        TableColumn("Publisher", "name"),
        TableColumn("Host", "host"),
        TableColumn("Holds", "frontier", said=lambda frontier, _: frontier_text(frontier)),
        TableColumn("Holds back", "holds_back", said=lambda frontier, _: frontier_text(frontier)),
        TableColumn("Staged", "staged", "number"),
        TableColumn("Last seen", "last_seen"),
    ),
    "no publishers",
)


def frontier_text(epochs: Sequence[Sequence[int]]) -> str | None:
    """An antichain for people: ``5``, or ``(0, 4) (3, 0)``; None: there is nothing in it."""
    texts = (str(one[0]) if len(one) == 1 else f"({', '.join(map(str, one))})" for one in epochs)
    return " ".join(texts) or None


STREAMS_OF_SPACE = FactTable(
    (
        STREAM, NEXT, TableColumn("Oldest", "oldest", "number"), BYTES,
        TableColumn(
            "Merged", "merged", "number", where=lambda space: any(one.merged for one in space.streams)
        ),
        STATE,
        TableColumn("Last append", "last_append"),
        TableColumn("Held by", "held_by"), TableColumn("From", "held_from", "number"),
        TableColumn("Since", "held_since"),
        TableColumn(
            "Finished by",
            "finished_by",
            said=lambda by, space: None if by is None else f"{len(by)} of {len(space.groups)}",
            where=lambda space: len(space.generations) > 1 or space.ended,
        ),
    )
)  # fmt: skip
GROUPS_OF_SPACE = FactTable(
    (
        TableColumn("Group", "subscription"),
        TableColumn("Behind", "behind", "number"),
        TableColumn("Idle", "idle_seconds", "number", unit="seconds"),
        TableColumn("Expires after", "expires_after_seconds", "number"),
        TableColumn("Expired", "expired_at"),
    )
)

# ------------------------------------------------------------ hosts

HOST = TableColumn("Leader host", "host")
PROCESS = TableColumn("Process", "pid")
LEADERS = TableColumn("Leaders", "leaders", "number")

HOSTS_IN_STATUS = FactTable(
    (HOST, PROCESS, LEADERS),
    "no leader hosts: consumers lead by themselves, or start one with 'streamlease serve'",
)
