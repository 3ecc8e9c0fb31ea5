"""Modules that one can read, and machines that fit on two screens."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable
from pathlib import Path
from textwrap import dedent

from tests.house.plan import MODULES, PURE, ROOT, committed

LONGEST_MODULE = 400
LONGEST_TEST = 700
"""Lines of any Python file; what is no module of the house is read beside what it tests."""

LONGEST_MACHINE = 200
"""Lines of code, without docstrings and comments, of a class in a `core/`: two screens."""


def longer_than(most: int, sources: Iterable[Path]) -> dict[str, int]:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sources}
    return {name: length for name, length in lengths.items() if length > most}


def test_no_module_is_longer_than_one_can_read() -> None:
    assert longer_than(LONGEST_MODULE, MODULES.values()) == {}, "part it by idea"
    assert longer_than(LONGEST_TEST, (path for path in committed() if path.suffix == ".py")) == {}


def code_of_classes(source: str) -> dict[str, int]:
    """Lines of code of every class: without docstrings, of attributes too, comments and empty lines."""
    tree = ast.parse(source)
    words = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    code = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in blank
        for line in range(token.start[0], token.end[0] + 1)
    } - words
    return {
        node.name: len(code.intersection(range(node.lineno, (node.end_lineno or node.lineno) + 1)))
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }


def test_a_machine_fits_on_two_screens() -> None:
    sizes = {name: size for path in PURE.values() for name, size in code_of_classes(path.read_text()).items()}
    found = {name for name, size in sizes.items() if size > LONGEST_MACHINE}
    assert found == set(), "find the idea in it that owns state, and make that a part"


def test_only_code_counts() -> None:
    source = """
        class A:
            '''What it is,
            and more.'''

            x: int = 1  # one
            '''How many.'''
            # why
            text = '''a

            b'''

        class B:
            y = (
                1,
            )
    """
    assert code_of_classes(dedent(source)) == {"A": 5, "B": 4}
