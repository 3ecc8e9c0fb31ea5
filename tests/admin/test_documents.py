"""The JSON Schemas of the docs, and that each command which takes ``--json`` has one.

`tests.admin.command` checks every document that any test of the command gets against them.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pydantic import ValidationError

from streamlease.admin.cli import app
from streamlease.admin.documents import DOCUMENTS, check
from tests.admin.command import Outcome, checked

ROOT = Path(__file__).resolve().parents[2]
WITHOUT = {"demo", "serve", "bridge mqtt"}
"""``demo`` prints its report, ``serve`` and bridges log: none is a document of a view or an act."""


def commands(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
    for name in below or ():
        yield from commands(below[name], f"{path} {name}".strip())


def test_every_command_with_json_has_a_schema_and_no_other() -> None:
    with_json = {
        path
        for path, command in commands(typer.main.get_command(app))
        if any("--json" in parameter.opts for parameter in command.params)
    }
    assert with_json - WITHOUT == set(DOCUMENTS)


def test_the_schemas_in_the_docs_are_those_of_the_models() -> None:
    spec = importlib.util.spec_from_file_location("schemas", ROOT / "scripts" / "schemas.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = {path.name: path.read_text() for path in module.FOLDER.glob("*.json")}
    assert written == module.files(), "run: .venv/bin/python scripts/schemas.py"


GOOD: dict[str, Any] = {"subscription": "$shared/g/a", "act": "resume", "dry_run": False}


@pytest.mark.parametrize(
    "bad",
    [
        {**GOOD, "more": 1},
        {name: value for name, value in GOOD.items() if name != "act"},
        {**GOOD, "dry_run": "no"},
        {"error": "text"},
    ],
)
def test_what_is_not_promised_is_noticed(bad: dict[str, Any]) -> None:
    check("group resume", json.dumps(GOOD))
    with pytest.raises(ValidationError):
        check("group resume", json.dumps(bad))
    with pytest.raises(ValidationError):
        checked(["group", "resume", "$shared/g/a", "--json"], Outcome(0, json.dumps(bad), ""))
