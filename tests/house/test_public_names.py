"""What programs import is a name of the package itself, and made when it is asked for."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import streamlease


def test_each_public_name_is_there_and_costs_nothing_before() -> None:
    for name in streamlease.__all__:
        assert getattr(streamlease, name) is not None
        assert name in dir(streamlease)
    assert _heavy_ones_of("streamlease") == []


def test_help_and_completion_import_nothing_heavy() -> None:
    assert _heavy_ones_of("streamlease.admin.cli") == []


def test_type_checkers_see_what_runs() -> None:
    assert streamlease.__file__ is not None
    tree = ast.parse(Path(streamlease.__file__).read_text())
    (typed,) = [one for one in tree.body if isinstance(one, ast.If)]
    seen = set()
    for one in typed.body:
        assert isinstance(one, ast.ImportFrom)
        assert one.module is not None
        for alias in one.names:
            module = importlib.import_module(one.module)
            home = getattr(module, alias.name, None) or importlib.import_module(f"{one.module}.{alias.name}")
            assert getattr(streamlease, alias.name) is home
            seen.add(alias.name)
    assert seen | {"StreamleaseError", "__version__", "errors"} == {*streamlease.__all__}


def _heavy_ones_of(module: str) -> list[str]:
    """What an import of `module` alone brings along that takes long."""
    heavy = "redis", "pyarrow", "pydantic"
    program = f"import {module}, sys; print(*(one for one in {heavy} if one in sys.modules))"
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()
