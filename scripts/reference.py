"""Write ``docs/reference.md``: every command of ``streamlease`` with its arguments and options.

Run it after a change of a command: ``.venv/bin/python scripts/reference.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference.md"
HEAD = """\
# The commands

Written by `scripts/reference.py` from the commands themselves. Exit 0: done; 1: failed; 2: the command or one
of its values is not acceptable. An error is one line on standard error; with `--json` also a document
`{"error": {"type", "message"}}` on standard output.

"""
PASSED_OVER = {"help", "install_completion", "show_completion"}


def reference() -> str:
    """The whole page."""
    import typer.main

    from streamlease.admin.cli import app

    command = typer.main.get_command(app)
    return HEAD + "\n".join(_command(command, "streamlease"))


def _command(command: Any, path: str) -> Iterator[str]:
    below = getattr(command, "commands", None)
    if below is None:
        yield f"## {path}\n\n{_text(command.help)}\n"
        rows = [row for parameter in command.params if (row := _row(parameter)) is not None]
        if rows:
            yield "| argument or option | default | meaning |\n|---|---|---|"
            yield "\n".join(rows) + "\n"
        return
    for name in sorted(below):
        yield from _command(below[name], f"{path} {name}")


def _row(parameter: Any) -> str | None:
    if parameter.name in PASSED_OVER or getattr(parameter, "hidden", False):
        return None
    is_argument = parameter.param_type_name == "argument"
    names = (*parameter.opts, *parameter.secondary_opts)
    label = parameter.metavar or parameter.name.upper() if is_argument else ", ".join(names)
    kind = parameter.type_descriptor.annotation
    choices = list(kind) if isinstance(kind, type) and issubclass(kind, Enum) else []
    meaning = _text(getattr(parameter, "help", None) or "")
    if choices:
        words = ", ".join(f"`{choice.value}`" for choice in choices)
        meaning = f"{meaning} One of {words}.".strip()
    if parameter.envvar:
        meaning = f"{meaning} Environment: `{parameter.envvar}`.".strip()
    default = parameter.default
    default = getattr(default, "value", default)
    shown = "" if default in (None, "", False) or callable(default) or is_argument else f"`{default}`"
    if getattr(parameter, "required", False) and not is_argument:
        shown = "required"
    label = label.replace("|", "\\|")
    return f"| `{label}` | {shown} | {meaning} |"


def _text(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from scripts.installation import require_installation

    require_installation("reference.py")
    PAGE.write_text(reference())
    sys.stdout.write(f"reference: wrote {PAGE.name}\n")
