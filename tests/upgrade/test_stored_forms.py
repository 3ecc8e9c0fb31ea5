"""What each version has left in Redis is read, and gone on with, by this one.

A stored form that changes without a thought for what is there fails here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from streamlease import __version__, connect
from tests.upgrade.dump import dumped, restore
from tests.upgrade.scenario import go_on, read, write

FORMS = Path(__file__).parent / "forms"
VERSIONS = sorted(path.stem for path in FORMS.glob("*.json"))


def test_there_is_a_form_of_this_version() -> None:
    assert __version__ in VERSIONS, "make it: .venv/bin/python -m tests.upgrade"


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
async def test_what_a_version_left_is_read_and_gone_on_with(redis_url: str, version: str) -> None:
    form = json.loads((FORMS / f"{version}.json").read_text())
    with Redis.from_url(redis_url) as redis:
        restore(redis, form["keys"])
    async with connect(redis_url) as client:
        found = await read(client, form["done"])
        assert json.loads(json.dumps(found)) == form["found"]
        await go_on(client)


@pytest.mark.slow
async def test_what_this_version_leaves_is_what_its_form_has(redis_url: str) -> None:
    """The form would not show what the scenario has got since."""
    async with connect(redis_url) as client:
        done = await write(client)
    with Redis.from_url(redis_url) as redis:
        keys = dumped(redis)
    form = json.loads((FORMS / f"{__version__}.json").read_text())
    assert _kinds(keys) == _kinds(form["keys"]), "make it again: .venv/bin/python -m tests.upgrade"
    async with connect(redis_url) as client:
        found = await read(client, done)
        assert found["spaces"] == form["found"]["spaces"]
        assert found["seats"] == form["found"]["seats"]
        await go_on(client)


def _kinds(keys: dict[str, list[Any]]) -> set[tuple[str, str]]:
    """Kinds of keys and their types, but for what hosts do beside: some come to that, and some do not."""
    beside = ":!", ":open:", ":pulses"
    return {
        (key.partition("}")[2].split(":")[1], held[0])
        for key, held in keys.items()
        if not any(one in key for one in beside)
    }
