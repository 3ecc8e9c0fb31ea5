"""What was read of all spaces is read once: again only what changed of it, and together with others."""

from __future__ import annotations

import asyncio
import random

import pytest

from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.spaces import known as module
from streamlease.streams.spaces import matching
from streamlease.streams.spaces.definitions import Space
from streamlease.streams.spaces.known import read_definitions
from streamlease.streams.spaces.spaces import SpaceStore
from streamlease.streams.spaces.table import Definitions, DefinitionTable

MANY = 1500


def definition(name: str, streams: int = 1) -> bytes:
    generation = f'{{"number": 0, "streams": {streams}}}'
    return f'{{"name": "{name}", "topics": ["{name}/#"], "generations": [{generation}]}}'.encode()


def flat(definitions: dict[bytes, bytes]) -> list[bytes]:
    return [part for pair in definitions.items() for part in pair]


def test_only_what_changed_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {f"s{number}".encode(): definition(f"s{number}") for number in range(MANY)}
    before = read_definitions(flat(texts))
    read: list[str] = []
    parse = module.parse_definition

    def counted(name: str, text: bytes) -> Space:
        read.append(name)
        return parse(name, text)

    monkeypatch.setattr(module, "parse_definition", counted)
    assert read_definitions(flat(texts), before) is before
    texts[b"s7"] = definition("s7", 2)
    now = read_definitions(flat(texts), before)
    assert (read, now.spaces["s7"].newest.streams, len(now.spaces)) == (["s7"], 2, MANY)
    assert before.spaces["s7"].newest.streams == 1


@pytest.mark.parametrize("seed", range(20))
def test_it_is_what_reading_all_of_it_gives(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rolls = random.Random(seed)
    names = ["a", "b", "c", "d", "\\xff"]
    keys = [*(name.encode() for name in names), b"\xff"]
    texts: dict[bytes, bytes] = {}
    known = read_definitions([])
    monkeypatch.setattr(matching, "MOST_CHANGED", rolls.choice([0, 1, 3, 64]))
    for _ in range(60):
        key = rolls.choice(keys)
        if key in texts and rolls.random() < 0.4:
            del texts[key]
        else:
            texts[key] = rolls.choice([definition(rolls.choice(names), rolls.randint(1, 3)), b"", b"{}"])
        known, whole = read_definitions(flat(texts), known), read_definitions(flat(texts))
        assert (known.spaces, known.damaged) == (whole.spaces, whole.damaged)
        for name in names:
            own = [known.spaces[name]] if name in known.spaces else []
            assert known.matching(f"{name}/x") == whole.matching(f"{name}/x") == own
        if rolls.random() < 0.7:  # what finds them is made when it is first asked
            assert known.matching("#") == whole.matching("#") == known.listed


async def test_all_who_ask_while_it_is_being_read_share_the_next_reading(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SpaceStore(redis)
    for number in range(3):
        await store.create(f"s{number}", [f"t/{number}/#"], streams=1)
    readings: asyncio.Queue[asyncio.Event] = asyncio.Queue()
    read_all = DefinitionTable.read_all

    async def held_up(self: DefinitionTable) -> Definitions:
        found, go_on = await read_all(self), asyncio.Event()
        readings.put_nowait(go_on)
        await go_on.wait()
        return found

    monkeypatch.setattr(DefinitionTable, "read_all", held_up)
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        first = tasks.create_task(store.look_with_others())
        go_on = await readings.get()
        await SpaceStore(redis).create("late", ["late/#"], streams=1)
        others = [tasks.create_task(store.look_with_others()) for _ in range(50)]
        go_on.set()
        (await readings.get()).set()
    assert "late" not in first.result().spaces
    assert {*map(id, (one.result() for one in others))} == {id(others[0].result())}
    assert [*sorted(others[0].result().spaces)] == ["late", "s0", "s1", "s2"]
    assert readings.empty(), "two readings were enough"
