"""How a leader is put together: who may change what, and what happens in one part reaches the others."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from streamlease.leader.core import couplings, happenings
from streamlease.leader.core.machine import Leader
from streamlease.leader.core.state.outcomes import Outcome
from streamlease.leader.core.taking import TAKING_TRANSITIONS, Taking, TakingEvent
from streamlease.protocol.acts import LastingAct, LastingName
from tests.leader.make import S0, led

CORE = Path(couplings.__file__).parent
LOOKERS = [
    CORE / "machine.py",
    CORE / "couplings.py",
    CORE / "reactions.py",
    CORE / "view.py",
    *sorted((CORE / "parts").glob("*.py")),
]
CHANGES = {"append", "add", "clear", "discard", "extend", "pop", "popleft", "remove", "setdefault", "update"}
OWNED = {"lease": "leases.py", "peer": "peers.py", "known": "peers.py"}
"""Rows of a table, by the name that they go by, and where their fields may be set."""


def path_of(node: ast.expr) -> list[str]:
    """``a.b[c].d`` as ``["a", "b", "d"]``; empty if it begins with something else than a name."""
    names: list[str] = []
    while True:
        match node:
            case ast.Attribute(value=inner, attr=name):
                names.append(name)
                node = inner
            case ast.Subscript(value=inner):
                node = inner
            case ast.Name(id=name):
                return [name, *reversed(names)]
            case _:
                return []


def changed(tree: ast.AST) -> Iterator[tuple[int, list[str]]]:
    """What a module sets, deletes, or calls a changing method of, as paths of at least two names."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        match node:
            case ast.Assign(targets=found) | ast.Delete(targets=found):
                targets = [one for target in found for one in getattr(target, "elts", [target])]
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                targets = [target]
            case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in CHANGES:
                targets = [inner]
            case _:
                pass
        for target in targets:
            path = path_of(target)
            if len(path) > 1:
                yield node.lineno, path


def foreign_changes(name: str, source: str) -> list[str]:
    """Changes of state that is not the module's own: that is ``self.field`` and rows of its table."""
    return [
        f"{name}:{line}: {'.'.join(path)}"
        for line, path in changed(ast.parse(source))
        if not (path[0] == "self" and len(path) == 2) and OWNED.get(path[0]) != name
    ]


def test_every_part_changes_only_its_own_state() -> None:
    assert [found for path in LOOKERS for found in foreign_changes(path.name, path.read_text())] == []


@pytest.mark.parametrize(
    "line",
    [
        "self.peers.names.pop(one)",
        "self.plans.made = 1",
        "leader.leases.forced[stream] += 1",
        "lease.state = target",
        "self.ledger.durable.term, other = 1, 2",
        "del self.peers.arrivals[name]",
    ],
)
def test_a_foreign_change_is_found(line: str) -> None:
    assert foreign_changes("plans.py", line) != []


def test_every_happening_has_its_row() -> None:
    assert set(couplings.COUPLINGS) == set(get_args(happenings.Happening))


def test_every_act_has_its_row() -> None:
    assert set(couplings.FOLLOWS) == set(get_args(Outcome))
    outcomes = [kind.model_fields["act"].default for kind in get_args(Outcome)]
    acts = [kind.model_fields["act"].default for kind in get_args(LastingAct)]
    assert outcomes == acts == list(get_args(LastingName))


def test_no_part_is_cut_by_inheritance() -> None:
    assert Leader.__mro__ == (Leader, object)


@pytest.mark.parametrize(
    ("state", "event"), list(itertools.product(Taking, TakingEvent)), ids=lambda value: value.value
)
def test_what_plans_may_take_follows_its_table(state: Taking, event: TakingEvent) -> None:
    weighing = led().leader.plans.weighing
    weighing.taking, weighing.left = state, 3 if state is Taking.UP_TO_SO_MANY else 0
    before = weighing.taking, weighing.left
    weighing._move(event, 5)
    target = TAKING_TRANSITIONS.get((state, event))
    assert (weighing.taking, weighing.left) == (before if target is None else (target, 5))


def test_all_that_happened_is_handed_on_within_the_turn() -> None:
    """One silent borrower: its streams are freed, its session is forgotten, and a plan is made."""
    rig = led((S0,), ("b1",))
    made = rig.leader.plans.made
    rig.tick(20_000)
    assert (dict(rig.leader.leases), dict(rig.leader.peers)) == ({}, {})
    assert not rig.leader.ledger.happenings
    assert rig.leader.plans.made == made + 1
