"""The ledger of one term: what is durable, and in what order records and messages of a turn leave.

What is durable lives in `GroupState` and changes only through `Ledger.record`. Effects are ordered "persist
before send": a `Persist` that stands before a `Send` must be durable under the term before the message
leaves.

The ledger also takes down what happens in one part and concerns others; `couplings` hands it on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar, overload

from streamlease.leader.core.events import Effect, Persist, Send, Stop
from streamlease.leader.core.happenings import Happening
from streamlease.leader.core.parts.mirror import Mirror
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.records import Record
from streamlease.protocol.messages import FromLeader

_Row = TypeVar("_Row")
_Default = TypeVar("_Default")


@dataclass(slots=True)
class Ledger:
    """What one leader writes and says in one term."""

    group: str
    host: str
    term: int
    durable: GroupState
    lineage: str = ""
    """Of the data in which the term was issued (`registry/leadership.py`)."""
    refused: int = 0
    """Events that no transition allows, and late messages: counted, without any other effect."""
    stopped: bool = False
    mirror: Mirror = field(default_factory=Mirror)
    """What consumers are to find beside the journal."""
    _records: list[Record] = field(default_factory=list)
    _effects: list[Effect] = field(default_factory=list)
    happenings: deque[Happening] = field(default_factory=deque)
    """What the other parts are to be told of, the oldest first."""

    def record(self, record: Record) -> None:
        """Change what is durable."""
        self.mirror.applied(record, self.durable.apply(record))
        self._records.append(record)

    def send(self, mailbox: str, message: FromLeader) -> None:
        """Let a message leave, after all records made so far."""
        if self._records:
            self._persist()
        self._effects.append(Send(mailbox, message))

    def effect(self, effect: Effect) -> None:
        """Let this be done, after all records made so far."""
        if self._records:
            self._persist()
        self._effects.append(effect)

    def refuse(self) -> None:
        """Count an event without any other effect."""
        self.refused += 1

    def stop(self, reason: str) -> None:
        """Resign; there is no further turn."""
        self.effect(Stop(reason))
        self.stopped = True

    def happened(self, fact: Happening) -> None:
        """Tell the other parts, as soon as this one is done."""
        self.happenings.append(fact)

    def next_happening(self) -> Happening:
        """Take the oldest of them out."""
        return self.happenings.popleft()

    def end_turn(self) -> list[Effect]:
        """All that is to be done, in order."""
        if self._records:
            self._persist()
        effects, self._effects = self._effects, []
        return effects

    def _persist(self) -> None:
        self._effects.append(Persist(tuple(self._records)))
        self._records = []


@dataclass(slots=True)
class Table(Mapping[str, _Row]):
    """Rows by name, which all parts may look at and only the part that owns them can change."""

    _rows: dict[str, _Row] = field(default_factory=dict, kw_only=True)

    def __getitem__(self, name: str) -> _Row:
        return self._rows[name]

    @overload
    def get(self, name: str, default: None = None, /) -> _Row | None: ...
    @overload
    def get(self, name: str, default: _Row | _Default, /) -> _Row | _Default: ...
    def get(self, name: str, default: _Default | None = None, /) -> _Row | _Default | None:
        """The row of that name, or `default`."""
        return self._rows.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    @property
    def view(self) -> Mapping[str, _Row]:
        """The same rows, for whoever asks for thousands of them at once: no call of Python for each."""
        return MappingProxyType(self._rows)

    def items(self) -> ItemsView[str, _Row]:
        """Pairs of a name and its row."""
        return self._rows.items()

    def values(self) -> ValuesView[_Row]:
        """All rows."""
        return self._rows.values()
