"""Who may import whom: storeys without arrows upwards or circles, and machines without input or output."""

from __future__ import annotations

import ast
import graphlib
from collections import Counter
from pathlib import Path

import pytest

from tests.house.plan import MODULES, PURE, imports, in_room, offences

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
    "testing.memory",
    "testing.timelines",
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
    "__main__",
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
    circle: list[str] = []
    try:
        graphlib.TopologicalSorter({name: uses - {name} for name, uses in graph.items()}).prepare()
    except graphlib.CycleError as error:
        circle = error.args[1]
    assert circle == []


IMPURE = r"redis|rq|pyspark|asyncio|threading|time|random|secrets|uuid|os|socket|subprocess"
SHELLS = (
    r"streamlease\.(?:streams(?!\.\w+\.core\.|\.entries\.kernels$)|services(?!\.core\.)"
    r"|registry|hosts|agent|admin)"
)
"""A machine may use another machine, and Arrow's functions by their names."""


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
