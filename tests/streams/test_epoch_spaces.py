"""Spaces with epochs: what may be asked for, and what stays as it is."""

from __future__ import annotations

import pytest

from streamlease.protocol.errors import InvalidOption, SpaceConflict, Unsupported
from streamlease.streams.log.keys import SPACE_DEFINITIONS
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.spaces.spaces import SpaceStore


@pytest.fixture
def spaces(redis: AsyncRedis) -> SpaceStore:
    return SpaceStore(redis)


async def test_a_space_has_no_epochs_unless_it_is_asked_for(spaces: SpaceStore) -> None:
    plain = await spaces.create("plain", ["plain/#"])
    assert (plain.epochs, plain.epochs_timeout_ms, plain.epochs_on_loss) == (0, 30_000, "abort")
    timed = await spaces.create("timed", ["timed/#"], epochs=2, epochs_timeout=1.5, epochs_on_loss="wait")
    assert (timed.epochs, timed.epochs_timeout_ms, timed.epochs_on_loss) == (2, 1500, "wait")
    assert await spaces.get("timed") == timed


async def test_creating_the_same_epochs_again_is_a_success(spaces: SpaceStore) -> None:
    made = await spaces.create("clicks", ["clicks/#"], epochs=1, epochs_timeout=5)
    assert await spaces.create("clicks", ["clicks/#"], epochs=1) == made
    assert await spaces.create("clicks", ["clicks/#"], epochs=1, epochs_timeout=5) == made
    others: list[dict[str, object]] = [
        {},
        {"epochs": 2},
        {"epochs": 1, "epochs_timeout": 6},
        {"epochs": 1, "epochs_on_loss": "wait"},
    ]
    for other in others:
        with pytest.raises(SpaceConflict, match=r"clicks exists with epochs of 1 dimension; .* after 5s of"):
            await spaces.create("clicks", ["clicks/#"], **other)  # type: ignore[arg-type]
    await spaces.create("plain", ["plain/#"])
    with pytest.raises(SpaceConflict, match="plain exists without epochs"):
        await spaces.create("plain", ["plain/#"], epochs=1)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"epochs": 9}, "epochs of 9 dimensions: give 1 to 8"),
        ({"epochs": -1}, "epochs of -1 dimensions"),
        ({"epochs": True}, "epochs of True dimensions"),
        ({"epochs": False}, "epochs of False dimensions"),
        ({"epochs": "2"}, "epochs of '2' dimensions"),
        ({"epochs_timeout": 30}, "has no epochs, so epochs_timeout means nothing"),
        ({"epochs_on_loss": "wait"}, "has no epochs, so epochs_on_loss means nothing"),
        ({"epochs": 1, "epochs_on_loss": "weep"}, "epochs_on_loss 'weep' is unknown"),
        ({"epochs": 1, "epochs_timeout": 0}, "epochs_timeout 0"),
        ({"epochs": 1, "epochs_timeout": float("nan")}, "epochs_timeout nan"),
        ({"epochs": 1, "epochs_timeout": float("inf")}, "epochs_timeout inf"),
        ({"epochs": 1, "epochs_timeout": "30s"}, "epochs_timeout '30s'"),
        ({"epochs": 1, "epochs_timeout": True}, "epochs_timeout True"),
        ({"epochs": 1, "compact_after_ms": 60_000}, "never merged"),
    ],
)
async def test_nonsense_is_refused(spaces: SpaceStore, asked: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        await spaces.create("clicks", ["clicks/#"], **asked)  # type: ignore[arg-type]
    assert said in str(refused.value) and "\n" not in str(refused.value)
    assert await spaces.list() == []


async def test_a_space_with_epochs_keeps_its_streams(spaces: SpaceStore) -> None:
    made = await spaces.create("clicks", ["clicks/#"], streams=2, epochs=1)
    for streams, rotate in ((3, False), (None, True), (2, True), (2, False)):
        with pytest.raises(SpaceConflict, match="has epochs, so it gets other streams while it has no publ"):
            await spaces.generations.alter("clicks", streams=streams, rotate=rotate)
    assert await spaces.get("clicks") == made


@pytest.mark.parametrize("damage", ['"epochs":9', '"epochs_timeout_ms":0', '"epochs_on_loss":"weep"'])
async def test_a_damaged_definition_is_found_out(spaces: SpaceStore, redis: AsyncRedis, damage: str) -> None:
    await spaces.create("clicks", ["clicks/#"], epochs=1)
    whole = (await redis.hget(SPACE_DEFINITIONS, "clicks")).decode()
    name = damage.partition(":")[0]
    await redis.hset(
        SPACE_DEFINITIONS, "clicks", whole.replace("{", "{" + damage + ",", 1).replace(f",{name}:", ',"x":')
    )
    with pytest.raises(Unsupported, match=name.strip('"')):
        await spaces.get("clicks")
