"""Write ``docs/schemas/``: the JSON Schema of what each command prints with ``--json``.

Run it after a change of a document: ``.venv/bin/python scripts/schemas.py``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "schemas"


def files() -> dict[str, str]:
    """The text of each file, by its name."""
    from streamlease.admin.documents import DOCUMENTS, schema

    return {
        f"{command.replace(' ', '-')}.json": json.dumps(schema(command), indent=1, sort_keys=True) + "\n"
        for command in DOCUMENTS
    }


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from scripts.installation import require_installation

    require_installation("schemas.py")
    FOLDER.mkdir(exist_ok=True)
    wanted = files()
    for old in FOLDER.glob("*.json"):
        if old.name not in wanted:
            old.unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text)
    sys.stdout.write(f"schemas: wrote {len(wanted)} files\n")
