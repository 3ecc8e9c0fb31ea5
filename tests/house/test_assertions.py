"""Assertions only look: with ``python -O`` nothing is done that stands in one."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.house.plan import MODULES, ROOT

LOOKING = {"isinstance", "issubclass", "callable", "len", "all", "any", "type", "set"}
"""What may be called in an assertion."""


def acts_in_assertions(source: str) -> Iterator[int]:
    """The lines of the assertions of which something may be missed when they are left out."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assert):
            for part in ast.walk(node.test):
                called = isinstance(part, ast.Call) and ast.unparse(part.func) not in LOOKING
                if called or isinstance(part, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom):
                    yield node.lineno


def test_assertions_do_nothing() -> None:
    """Who runs Python with ``-O`` or ``PYTHONOPTIMIZE`` has none of them."""
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in MODULES.values()
        for line in acts_in_assertions(path.read_text("utf-8"))
    ]
    assert found == [], "do it before, and assert what it came to"


@pytest.mark.parametrize(
    "source", ["assert key.pop() is entry", "assert (one := take())", "async def f():\n    assert await one"]
)
def test_what_acts_in_an_assertion_is_found(source: str) -> None:
    assert [*acts_in_assertions(source)]


def test_what_looks_in_an_assertion_is_not() -> None:
    assert not [*acts_in_assertions("assert isinstance(one, int) and len(one.name) > 2 and one.two")]
