"""What each version has left in Redis, and beside it, is read, and gone on with, by this one.

A stored form that changes without a thought for what is there fails here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from streamlease import __version__
from tests.upgrade.dump import dumped, restore
from tests.upgrade.parts import PARTS

FORMS = Path(__file__).parent / "forms"
LEFT = sorted((path.parent.name, path.stem) for path in FORMS.glob("*/*.json"))


def test_there_is_a_form_of_this_version() -> None:
    parts = [part for version, part in LEFT if version == __version__]
    assert parts == sorted(PARTS), "make it: .venv/bin/python -m tests.upgrade"


@pytest.mark.slow
@pytest.mark.parametrize(("version", "part"), [(version, part) for version, part in LEFT if part != "core"])
async def test_what_a_version_left_is_read_and_gone_on_with(
    embedded_redis_url: str, version: str, part: str
) -> None:
    await _read_and_gone_on_with(embedded_redis_url, version, part)


@pytest.mark.slow
@pytest.mark.parametrize("version", [version for version, part in LEFT if part == "core"])
async def test_what_it_left_is_read_from_each_server(redis_url: str, version: str) -> None:
    await _read_and_gone_on_with(redis_url, version, "core")


async def _read_and_gone_on_with(url: str, version: str, part: str) -> None:
    form, now = json.loads((FORMS / version / f"{part}.json").read_text()), PARTS[part]
    with Redis.from_url(url) as redis:
        restore(redis, form["keys"])
    with now.beside(form["done"]):
        found = await now.read(url, form["done"])
        assert json.loads(json.dumps(found)) == form["found"]
        await now.go_on(url, form["done"])


@pytest.mark.slow
@pytest.mark.parametrize("part", [part for part in PARTS if part != "core"])
async def test_what_this_version_leaves_is_what_its_form_has(embedded_redis_url: str, part: str) -> None:
    """The form would not show what the part has got since."""
    await _leaves_what_its_form_has(embedded_redis_url, part)


@pytest.mark.slow
async def test_what_this_version_leaves_in_each_server_is_what_its_form_has(redis_url: str) -> None:
    await _leaves_what_its_form_has(redis_url, "core")


async def _leaves_what_its_form_has(url: str, part: str) -> None:
    form, now = json.loads((FORMS / __version__ / f"{part}.json").read_text()), PARTS[part]
    with now.beside(None):
        done = await now.write(url)
        with Redis.from_url(url) as redis:
            keys = dumped(redis)
        assert _kinds(keys) == _kinds(form["keys"]), "make it again: .venv/bin/python -m tests.upgrade"
        found = await now.read(url, done)
        assert found.keys() == form["found"].keys()
        for name in {"spaces", "seats"} & found.keys():
            assert found[name] == form["found"][name]
        await now.go_on(url, done)


def _kinds(keys: dict[str, list[Any]]) -> set[tuple[str, str]]:
    """Kinds of keys and their types, but for what hosts do beside: some come to that, and some do not."""
    beside = ":!", ":open:", ":pulses"
    return {
        (key.partition("}")[2].split(":")[1] if not key.endswith("}") else key.split(":")[1], held[0])
        for key, held in keys.items()
        if not any(one in key for one in beside)
    }
