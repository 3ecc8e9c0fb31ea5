"""The order of the house, kept by tests: packages, who may import whom, what may be committed.

The rules are those of section 2 of the design: every room knows its own job, the machines of leader and
borrower have no input or output, and nothing that is committed depends on where it was written.
"""

from __future__ import annotations

import ast
import gc
import graphlib
import importlib
import io
import re
import subprocess
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from itertools import takewhile
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES: list[str] = PROJECT["tool"]["setuptools"]["packages"]
PACKAGE_DIR: dict[str, str] = PROJECT["tool"]["setuptools"]["package-dir"]
PACKAGE_DATA: dict[str, list[str]] = PROJECT["tool"]["setuptools"]["package-data"]
ROOMS = {name.removeprefix("streamlease."): ROOT / folder for name, folder in PACKAGE_DIR.items() if name}
NO_ROOMS = {"src", "tests", "bench", "docs", "helm", "scripts", "build", "dist"}
LONGEST_MODULE = 400
LONGEST_TEST = 700
"""Lines of any Python file; what is no module of the house is read beside what it tests."""

LONGEST_MACHINE = 200
"""Lines of code, without docstrings and comments, of a class in a `core/`: two screens."""


def package_folders() -> dict[str, Path]:
    """Every importable package that is there, by name: the rooms, what is in them, and ``src``."""
    tops = {f"streamlease.{room}": folder for room, folder in ROOMS.items()}
    tops.update({path.parent.name: path.parent for path in (ROOT / "src").glob("*/__init__.py")})
    found = {}
    for top, folder in tops.items():
        for init in folder.rglob("__init__.py"):
            inside = init.parent.relative_to(folder).parts
            if not (top == "streamlease" and inside):  # below src/streamlease are only links to the rooms
                found[".".join((top, *inside))] = init.parent
    return found


FOLDERS = package_folders()
MODULES = {
    name if path.stem == "__init__" else f"{name}.{path.stem}": path
    for name, folder in sorted(FOLDERS.items())
    for path in sorted(folder.glob("*.py"))
}
LUA = sorted({path for folder in ROOMS.values() for path in folder.rglob("*.lua")})


def committed() -> list[Path]:
    """The files that git knows, without links and without what was deleted but not yet committed."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert len(paths) > 20, "git lists next to nothing: is this a checkout?"
    return [path for path in paths if path.is_file() and not path.is_symlink()]


# -- packages ------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _nothing_is_collected() -> Iterator[None]:
    """CPython 3.11 takes what a collection runs for a recursion of its parser, and ends with SystemError."""
    gc.disable()
    yield
    gc.enable()


def test_every_package_is_listed_and_every_listed_one_is_there() -> None:
    assert sorted(PACKAGES) == sorted(FOLDERS)


def test_every_top_level_package_is_a_room() -> None:
    tops = {path.parent.name for path in ROOT.glob("*/__init__.py")} - NO_ROOMS
    assert tops == {folder.name for room, folder in ROOMS.items() if "." not in room}


def test_the_links_below_src_lead_to_the_rooms() -> None:
    links = {path.name: path for path in (ROOT / "src" / "streamlease").iterdir() if path.is_symlink()}
    assert {name: link.readlink() for name, link in links.items()} == {
        room: Path("..") / ".." / folder.relative_to(ROOT)
        for room, folder in ROOMS.items()
        if "." not in room
    }


def test_files_that_are_no_modules_are_packed_too() -> None:
    """A wheel without its Lua files would be found out by a user only."""
    for path in committed():
        homes = [(name, folder) for name, folder in FOLDERS.items() if path.is_relative_to(folder)]
        if path.suffix == ".py" or not homes:
            continue
        name, folder = max(homes, key=lambda home: len(home[1].parts))
        patterns = [*PACKAGE_DATA.get("*", []), *PACKAGE_DATA.get(name, [])]
        inside = path.relative_to(folder).as_posix()
        assert any(fnmatch(inside, p) and p.count("/") == inside.count("/") for p in patterns), (
            f"{path.relative_to(ROOT)} is in no pattern of tool.setuptools.package-data"
        )


@pytest.mark.parametrize("module", [name for name in MODULES if not name.endswith("__main__")])
def test_every_module_can_be_imported(module: str) -> None:
    assert importlib.import_module(module).__name__ == module


# -- who may import whom -------------------------------------------------------------------------------------


def imports(path: Path, module: str) -> Iterator[str]:
    """The full names that a module imports anywhere in it; ``from a import b`` gives ``a.b``."""
    package = module if path.stem == "__init__" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, node.module] if node.module else above)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def offences(modules: dict[str, Path], forbidden: str) -> list[str]:
    """The imports in these modules whose full name begins with a match of that pattern."""
    pattern = re.compile(rf"(?:{forbidden})(?:\.|$)")
    return [
        f"{name} imports {target}"
        for name, path in modules.items()
        for target in imports(path, name)
        if pattern.match(target)
    ]


def in_room(*rooms: str) -> dict[str, Path]:
    prefixes = tuple(f"streamlease.{room}" for room in rooms)
    return {
        name: path
        for name, path in MODULES.items()
        if name.startswith(tuple(f"{p}." for p in prefixes)) or name in prefixes
    }


STOREYS = [
    "protocol",
    "streams",
    "streams.redis",
    "streams.redis.lines",
    "streams.catalog",
    "streams.entries",
    "streams.rows",
    "streams.archive.files",
    "streams.log",
    "streams.spaces",
    "streams.archive",
    "streams.publish",
    "streams.epochs.core",
    "streams.epochs",
    "streams.collections.core",
    "streams.collections",
    "streams.imports",
    "services.core",
    "services",
    "borrower",
    "leader.core.planning",
    "leader.core.state",
    "leader.core",
    "registry",
    "leader",
    "catalog",
    "queries.core",
    "queries",
    "hosts",
    "executor.core",
    "executor",
    "agent.membership",
    "agent",
    "http.core",
    "http",
    "testing",
    "spark.setup",
    "spark.core",
    "spark",
    "channels.core",
    "channels",
    "gateway.mqtt.core",
    "gateway.mqtt",
    "gateway.core",
    "gateway.channels.core",
    "gateway.webhooks.core",
    "gateway.members.core",
    "gateway.pages",
    "gateway.http1",
    "gateway",
    "admin",
    "examples",
]
"""The rooms from the ground up: each may use those before it. What has no line belongs to its parent."""


def storey(name: str) -> int | None:
    """Where a full name of a module, or of something in it, stands; nothing for what is not of the house."""
    inside = name.removeprefix("streamlease.")
    if inside in {name, "streamlease"}:
        return None
    homes = [room for room in STOREYS if inside == room or inside.startswith(f"{room}.")]
    return STOREYS.index(max(homes, key=len)) if homes else None


def arrows_upwards(modules: dict[str, Path]) -> list[str]:
    found = []
    for name, path in modules.items():
        own = storey(name)
        for target in imports(path, name) if own is not None else ():
            there = storey(target)
            if own is not None and there is not None and there > own:
                found.append(f"{name} imports {target}")
    return found


def test_every_room_has_a_storey() -> None:
    assert [name for name in MODULES if name.startswith("streamlease.") and storey(name) is None] == []


MOST_FLAT = 17
"""Modules of one folder; a room that grows gets rooms of its own at about fifteen."""


def test_a_room_is_no_heap() -> None:
    folders = Counter(
        path.parent
        for name, path in MODULES.items()
        if name.startswith("streamlease.") and path.stem != "__init__"
    )
    assert {str(folder): count for folder, count in folders.items() if count > MOST_FLAT} == {}


def test_no_arrow_leads_upwards() -> None:
    assert arrows_upwards(MODULES) == []


def test_modules_import_each_other_in_no_circle() -> None:
    """Imports inside of functions and for types count as well."""
    graph = {
        name: {
            m for target in imports(path, name) for m in (target, target.rpartition(".")[0]) if m in MODULES
        }
        for name, path in MODULES.items()
    }
    graphlib.TopologicalSorter({name: uses - {name} for name, uses in graph.items()}).prepare()


PURE = {**in_room("borrower"), **{name: path for name, path in MODULES.items() if ".core." in f"{name}."}}
"""The machines: purity is a rule by folder, ``core/``, and the whole room of the borrower."""
IMPURE = r"redis|rq|pyspark|asyncio|threading|time|random|secrets|uuid|os|socket|subprocess"
SHELLS = r"streamlease\.(?:streams(?!\.\w+\.core\.)|services(?!\.core\.)|registry|hosts|agent|admin)"
"""A machine may use another machine."""


@pytest.mark.parametrize(
    ("modules", "forbidden"),
    [
        pytest.param(in_room("protocol"), r"redis|rq|pyspark|asyncio", id="protocol"),
        pytest.param(PURE, rf"{IMPURE}|{SHELLS}", id="machines"),
        pytest.param(in_room("streams"), r"rq|pyspark|streamlease\.(?:borrower|leader)", id="streams"),
        pytest.param(in_room("registry"), r"pyspark|streamlease\.(?:borrower|leader)", id="registry"),
        pytest.param(in_room("leader", "hosts", "agent"), r"pyspark", id="without Spark"),
        pytest.param(in_room("http"), r"redis|rq|pyarrow|pyspark|streamlease\.(?:leader|gateway)", id="http"),
        pytest.param(in_room("spark"), r"streamlease\.(?:\w+\.)+(?:lua|keys|scripts)", id="spark"),
    ],
)
def test_a_room_knows_only_what_it_may_know(modules: dict[str, Path], forbidden: str) -> None:
    assert modules
    assert offences(modules, forbidden) == []


@pytest.mark.parametrize("module", PURE)
def test_a_machine_is_told_the_time_and_the_random_numbers(module: str) -> None:
    tree = ast.parse(PURE[module].read_text())
    clocks = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in {"now", "utcnow", "today"}
        and ast.unparse(node.value).rpartition(".")[2] in {"datetime", "date"}
    ]
    assert clocks == []
    assert offences({module: PURE[module]}, r"streamlease\.protocol\.ids\.random_token") == []


def test_the_rules_find_what_they_forbid(tmp_path: Path) -> None:
    """The guard's own test: each way to write an import is seen."""
    module = tmp_path / "machine.py"
    module.write_text(
        "import redis.asyncio as r\nfrom streamlease import streams\nfrom ..registry import x\n"
        "from . import keys\ndef f():\n    from time import time\n"
    )
    assert offences({"streamlease.leader.machine": module}, rf"{IMPURE}|{SHELLS}") == [
        "streamlease.leader.machine imports redis.asyncio",
        "streamlease.leader.machine imports streamlease.streams",
        "streamlease.leader.machine imports streamlease.registry.x",
        "streamlease.leader.machine imports time.time",
    ]
    assert offences({"streamlease.leader.machine": module}, r"streamlease\.\w+\.keys") == [
        "streamlease.leader.machine imports streamlease.leader.keys"
    ]


OWNED = {
    "streams/tasks.py": "the owners of tasks: `Supervisor`, and all or none",
    "testing/loops.py": "processes of virtual time, which end with their timeline",
    "agent/membership/leader_search.py": "awaited at once, in a context of its own",
    "agent/loop.py": "awaited by the thread that called, and cancelled with its call",
    "hosts/serve.py": "awaited by the thread of a probe, and cancelled with its answer",
    "leader/runner.py": "awaited in the same turn, beside what may end it",
    "admin/ui/live/channel_requests.py": "awaited beside the client that may go, and cancelled with it",
    "admin/demo/stage.py": "awaited by the loop that began it, and stopped with it",
    "gateway/catalog/catalog_handlers.py": "awaited beside the client that may go, and stopped with it",
    "gateway/http1/http_connection.py": "among the tasks of its server; its failure is logged",
    "gateway/between/passing_on.py": "awaited beside the client that may go, and cancelled with it",
    "gateway/members/served_member.py": "awaited beside the client that may go, and cancelled with it",
    "hosts/archiving.py": "a thread, awaited in turns; its end is told if the host stops first",
    "hosts/signals/group_signals.py": "of a TaskGroup",
    "services/binding.py": "among the requests at work, which end with the binding",
}
"""Where tasks are made by hand, and who owns them there; elsewhere a `Supervisor` or a TaskGroup does."""


def makes_tasks(path: Path) -> bool:
    """Whether it calls what makes a task of a coroutine."""
    calls = (node.func for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call))
    names = {call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in calls}
    return not names.isdisjoint({"create_task", "ensure_future", "run_coroutine_threadsafe"})


def test_every_task_has_an_owner() -> None:
    """Rule 9 of the design page."""
    made = {str(path.relative_to(ROOT)) for path in MODULES.values() if makes_tasks(path)}
    assert made == OWNED.keys()


SAME_THING = {
    "Batch", "Catalog", "Client", "Collection", "EpochPart", "EpochPublisher",  # the blocking twins
    "PageFollower", "GatewayClient",  # these, too
    "EpochSubscription", "PlainSubscription", "Publisher", "Serving", "Subscription",  # these too
    "DeadLetter", "Failed", "NotLeader", "Received", "Tick",  # the event, message or record of the same thing
}  # fmt: skip
"""Names that two modules may give to a class. The answers of commands are named as what they tell."""


def test_no_two_rooms_give_one_name_to_two_things() -> None:
    found: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        if module != "streamlease.admin.answers":
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found.setdefault(node.name, []).append(module)
    twice = {name: modules for name, modules in found.items() if len(modules) > 1 and name not in SAME_THING}
    assert twice == {}, "one name, one meaning: rename one of them, or say above that both are the same thing"


RECURRING = {
    "__init__": "a room", "__main__": "what 'python -m' runs", "keys": "the names of a room's keys in Redis",
    "metrics": "what a room counts for Prometheus", "traces": "what a room tells OpenTelemetry",
    "lease": "a lease, at the leader and at the borrower",
    "leases": "all of them, there and there",
    "machine": "the machine of the leader and that of the borrower", "events": "what each is stepped with",
    "blocking": "the twin of a client, for programs without an event loop",
    "spaces": "what there is, and the facts about it", "groups": "the same", "hosts": "the same",
}  # fmt: skip
"""Names that files of several rooms may have, and what each such file is."""


def test_files_of_one_name_are_the_same_thing() -> None:
    stems = Counter(path.stem for path in MODULES.values())
    again = {stem for stem, count in stems.items() if count > 1}
    assert again - RECURRING.keys() == set(), "rename one of them, or say above that both are the same thing"
    assert RECURRING.keys() - again - {"__main__"} == set(), "no two files have that name any more"


# -- what may be committed -----------------------------------------------------------------------------------

# Written in two halves, so that this file does not name them itself.
PACKAGE_HOSTS = [
    first + second
    for first, second in [
        ("pypi", ".org"), ("python", "hosted"), ("pypi", ".python"), ("test.", "pypi"), ("deb.", "debian"),
        ("security.", "debian"), ("archive.", "ubuntu"), ("registry.", "npmjs"), ("npmjs", ".com"),
        ("anaconda", ".org"), ("repo.", "maven"), ("repo1.", "maven"), ("crates", ".io"),
        ("proxy.", "golang"), ("--index", "-url"), ("--extra", "-index"), ("--find", "-links"),
        ("PIP_", "INDEX"), ("PIP_", "EXTRA"), ("PIP_", "FIND"), ("UV_", "INDEX"), ("UV_DEFAULT", "_INDEX"),
    ]
]  # fmt: skip
HOST = re.compile("|".join(map(re.escape, PACKAGE_HOSTS)), re.IGNORECASE)
HOMES = "|".join(["wo" + "rk", "ro" + "ot", "Us" + "ers", "op" + "t/(?!streamlease|spark)"])
DEVELOPMENT_PATH = re.compile(r"(?<![\w.})*/-])/(?:" + HOMES + r")\b")


def test_no_committed_file_names_a_package_host_or_a_development_path() -> None:
    found = []
    for path in committed():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            for kind, pattern in (("host", HOST), ("path", DEVELOPMENT_PATH)):
                hit = pattern.search(line)
                if hit is not None:
                    found.append(f"{path.relative_to(ROOT)}:{number}: {kind} {hit.group()}")
    assert found == []


@pytest.mark.parametrize(
    ("line", "is_path"),
    [
        ("cd /wo" "rk/main", True),
        ('"/ro' 'ot/.cache"', True),
        ("PATH=/op" "t/wheels", True),
        ("/op" "t/streamlease/bin", False),
        ("docs/work/notes.md and src/root/x", False),
        ("the work/life balance", False),
    ],
)  # fmt: skip
def test_development_paths_are_recognised(line: str, is_path: bool) -> None:
    assert bool(DEVELOPMENT_PATH.search(line)) is is_path


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


@pytest.mark.parametrize("script", LUA, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_lua_file_opens_with_its_keys_arguments_and_replies(script: Path) -> None:
    lines = script.read_text().splitlines()
    header = list(takewhile(lambda line: line.startswith("--"), lines))
    for word in ("KEYS", "ARGV", "Repl"):
        assert any(word in line for line in header), f"the header of {script.name} says nothing about {word}"


def test_no_two_lua_files_hold_six_equal_lines() -> None:
    """What two scripts do alike belongs into a file that both include."""
    runs: dict[tuple[str, ...], set[str]] = {}
    for script in LUA:
        lines = [line.split("--")[0].strip() for line in script.read_text().splitlines()]
        lines = [line for line in lines if line]
        for first in range(len(lines) - 5):
            runs.setdefault(tuple(lines[first : first + 6]), set()).add(str(script.relative_to(ROOT)))
    assert {run: found for run, found in runs.items() if len(found) > 1} == {}


def test_what_a_lua_file_includes_stands_before_its_first_statement() -> None:
    including = 0
    for script in LUA:
        head = list(
            takewhile(lambda line: line.startswith("--") or not line, script.read_text().splitlines())
        )
        named = script.read_text().count("-- include: ")
        including += named
        assert sum(line.startswith("-- include: ") for line in head) == named, script
    assert including >= 4


def test_the_design_page_has_every_room() -> None:
    """docs/design.md says of every storey, or of the room that it is in, what belongs there."""
    table = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `([a-z_/]+)/` \|", table, re.MULTILINE)
    assert [name for name in told if not (ROOT / name).is_dir()] == []
    assert {folder.name for room, folder in ROOMS.items() if "." not in room} == {
        name.partition("/")[0] for name in told
    }


# -- decisions -----------------------------------------------------------------------------------------------

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


# -- pins ----------------------------------------------------------------------------------------------------


def pins(name: str) -> dict[str, set[str]]:
    """The versions that ``requirements/<name>.txt`` pins, by package (one for each range of Pythons)."""
    found: dict[str, set[str]] = {}
    for line in (ROOT / "requirements" / f"{name}.txt").read_text().splitlines():
        pin = re.match(r"([\w.-]+)==([^\s;]+)", line)
        if pin is not None:
            found.setdefault(canonicalize_name(pin.group(1)), set()).add(pin.group(2))
    return found


def wanted(*tables: list[str]) -> list[Requirement]:
    requirements = [Requirement(line) for table in tables for line in table]
    return [requirement for requirement in requirements if requirement.name != "streamlease"]


def test_the_pins_are_what_pyproject_asks_for() -> None:
    """Run ``python3 scripts/pin.py`` after a change of dependencies."""
    project, groups = PROJECT["project"], PROJECT["dependency-groups"]
    extras = project["optional-dependencies"]
    base = wanted(project["dependencies"], *extras.values())
    for name, requirements in {
        "build": wanted(PROJECT["build-system"]["requires"]),
        "base": base,
        "dev": [*base, *wanted(*groups.values())],
    }.items():
        pinned = pins(name)
        for requirement in requirements:
            versions = pinned.get(canonicalize_name(requirement.name))
            assert versions, f"requirements/{name}.txt does not pin {requirement.name}"
            assert all(requirement.specifier.contains(v, prereleases=True) for v in versions), (
                f"requirements/{name}.txt pins {requirement.name} {versions}, wanted is {requirement}"
            )


def test_the_pins_of_all_files_agree() -> None:
    dev = pins("dev")
    for name in ("build", "base"):
        assert {package: dev.get(package) for package in pins(name)} == pins(name)
