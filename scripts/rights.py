"""Write the roles into ``docs/redis.md``, between the two marks, from the table in ``admin/doctor/roles.py``.

Run it after a change of the table: ``.venv/bin/python scripts/rights.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "redis.md"
BEGIN, END = "<!-- roles: written by scripts/rights.py -->\n", "<!-- end of roles -->\n"


def page(text: str) -> str:
    """The page with the roles of the table.

    Raises:
        ValueError: a mark is missing.
    """
    from streamlease.admin.doctor.roles import ROLES

    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} lacks the marks {BEGIN.strip()} and {END.strip()}")
    parts = [f"**{role.name}**: {role.who}\n\n```\n{role.line()}\n```\n" for role in ROLES.values()]
    return before + BEGIN + "\n" + "\n".join(parts) + "\n" + END + after


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from scripts.installation import require_installation

    require_installation("rights.py")
    sys.exit(main())
