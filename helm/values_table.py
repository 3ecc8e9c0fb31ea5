"""Write the table of values in ``helm/streamlease/README.md`` from values.yaml and values.schema.json.

Run it after a change of either: ``python3 helm/values_table.py``. It needs PyYAML.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parent / "streamlease"
BEGIN, END = "<!-- values: begin -->\n", "<!-- values: end -->\n"


def rows() -> Iterator[tuple[str, str, str]]:
    """Path, default (as JSON) and description of every value."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    yield from _rows(schema, schema["definitions"], defaults, "")


def _rows(
    schema: dict[str, Any], definitions: dict[str, Any], defaults: Any, path: str
) -> Iterator[tuple[str, str, str]]:
    for name, stated in schema["properties"].items():
        below = f"{path}.{name}".removeprefix(".")
        default = defaults.get(name) if isinstance(defaults, dict) else None
        shape = {**definitions.get(stated.get("$ref", "").rpartition("/")[2], {}), **stated}
        if "properties" in shape:
            yield from _rows(shape, definitions, default, below)
        else:
            yield below, "" if default is None else f"`{json.dumps(default)}`", shape["description"]


def table() -> str:
    """The table in Markdown."""
    lines = ["| value | default | meaning |", "|---|---|---|"]
    lines += [
        f"| `{path}` | {default} | {meaning} |" for path, default, meaning in rows() if path != "global"
    ]
    return "\n".join(lines) + "\n"


def readme(text: str) -> str:
    """``text`` with the table between its two marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    page = CHART / "README.md"
    page.write_text(readme(page.read_text()))
