"""Pages and decisions: their links, their index, and what they name."""

from __future__ import annotations

import re

from tests.house.plan import ROOMS, ROOT, committed

DECISIONS = ROOT / "docs" / "decisions"
INDEX = DECISIONS / "README.md"


def decisions() -> dict[str, str]:
    """Every decision by the name of its file."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(DECISIONS.glob("[0-9]*.md"))}


def test_every_decision_has_a_line_in_the_index() -> None:
    """Whoever adds a decision adds its line, under its subject, to docs/decisions/README.md."""
    found = re.findall(r"^- \[(\d{4})\]\(([^)]+)\)", INDEX.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(name for _, name in found) == sorted(decisions())
    assert all(name.startswith(f"{number}-") for number, name in found)


def test_a_decision_that_changed_names_the_one_that_changed_it() -> None:
    index = INDEX.read_text(encoding="utf-8")
    changed = {}
    for name, text in decisions().items():
        for how, by in re.findall(
            r"^\*\*(Superseded|Amended) by\*\* \[\d{4}\]\(([^)]+)\)", text, re.MULTILINE
        ):
            assert text.index(f"**{how} by**") < 200, f"{name}: at the top"
            assert (DECISIONS / by).is_file(), f"{name}: {by} is not there"
            changed[name[:4]] = f"{how.lower()} by {by[:4]}"
        beginning = text.partition("\n\n")[2].partition("\n\n")[0]
        otherwise = re.search(r"^\W*(Changed|Superseded|Amended|Replaced)\W+by\W", beginning, re.IGNORECASE)
        assert otherwise is None or name[:4] in changed, f"{name}: say **Superseded by** or **Amended by**"
    told = dict(re.findall(r"^- \[(\d{4})\].*\(((?:superseded|amended) by \d{4})\)$", index, re.MULTILINE))
    assert told == changed


def test_every_link_between_pages_leads_somewhere() -> None:
    pages = [path for path in committed() if path.suffix == ".md"]
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert dead == []


def test_the_files_that_pages_name_are_there() -> None:
    """Pages of today only: a decision may name what was there when it was made."""
    pages = [path for path in committed() if path.suffix == ".md" and DECISIONS not in path.parents]
    gone = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in pages
        for name in re.findall(
            r"`([a-z_]+(?:/[a-z_0-9]+)+\.(?:py|lua|md))(?::\w+)?`", page.read_text(encoding="utf-8")
        )
        if page.name != "CHANGELOG.md" and not (ROOT / name).is_file()
    ]
    assert gone == []


def test_the_design_page_has_every_room() -> None:
    """docs/design.md says of every storey, or of the room that it is in, what belongs there."""
    table = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `([a-z_/]+)/` \|", table, re.MULTILINE)
    assert [name for name in told if not (ROOT / name).is_dir()] == []
    assert {folder.name for room, folder in ROOMS.items() if "." not in room} == {
        name.partition("/")[0] for name in told
    }
