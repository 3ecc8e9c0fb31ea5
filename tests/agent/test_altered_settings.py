"""Settings of a space, altered by a program while the space is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamlease import ArchiveSettings, Retention, blocking
from streamlease.agent.client import Client
from streamlease.protocol.errors import (
    ArchiveUnavailable,
    InvalidInput,
    SchemaMismatch,
    SpaceConflict,
    StreamleaseError,
    StreamSealed,
    UnknownSpace,
)
from streamlease.streams.spaces import spaces as spaces_room
from streamlease.streams.spaces.archive_place import check_place, take_place
from streamlease.streams.spaces.spaces import Space

CITY = pa.schema([("city", pa.string())])
MORE = pa.schema([("city", pa.string()), ("sum", pa.int64())])
LIMITS = Retention(age_ms=5_000, bytes=1_000, messages=7, group_expiry_ms=9_000)
Given = dict[str, Any]


@pytest.fixture
async def space(client: Client) -> Space:
    return await client.create_space("s", ["s/#"], streams=2, schema=CITY, retention=LIMITS)


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        ({"retention": "2h"}, Retention(7_200_000, 1_000, 7, group_expiry_ms=9_000)),
        ({"retention": "none"}, Retention(None, 1_000, 7, group_expiry_ms=9_000)),
        ({"retention": Retention(messages=3)}, Retention(messages=3)),
        ({"retention": None}, LIMITS),
        ({}, LIMITS),
    ],
)
async def test_a_word_changes_the_age_and_an_object_all_limits(
    client: Client, space: Space, given: Given, becomes: Retention
) -> None:
    altered = await client.alter_space("s", **given)
    assert altered == space.model_copy(update={"retention": becomes}), "nothing else"
    assert await client.spaces.get("s") == altered


async def test_small_entries_are_merged_from_now_on_or_no_more(client: Client, space: Space) -> None:
    assert (await client.alter_space("s", compact_after_ms=60_000)).compact_after_ms == 60_000
    assert (await client.alter_space("s", retention="3h")).compact_after_ms == 60_000, "it stays"
    assert (await client.alter_space("s", compact_after_ms="off")).compact_after_ms is None


async def test_publishers_and_streams_take_the_new_schema(client: Client, space: Space) -> None:
    altered = await client.alter_space("s", schema=MORE, streams=3, retention="1h")
    assert altered.newest_schema is not None
    assert [one.name for one in altered.newest_schema.columns] == ["city", "sum"]
    assert (altered.newest.streams, altered.retention.age_ms) == (3, 3_600_000)
    async with client.publisher() as publisher:
        await publisher.send("s/a", {"city": "x", "sum": 4})
    async with client.history("s/#") as history:
        assert [message.values async for batch in history for message in batch.messages] == [
            {"city": "x", "sum": 4}
        ]


async def test_an_archive_comes_and_moves_and_its_former_place_is_free(
    client: Client, space: Space, tmp_path: Path
) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    altered = await client.alter_space("s", archive=ArchiveSettings(first, keep_ms=60_000))
    assert altered.archive == ArchiveSettings.of(first, keep_ms=60_000)
    with pytest.raises(SpaceConflict, match="is the archive of another space"):
        await client.create_space("t", ["t/#"], archive=first)
    moved = await client.alter_space("s", archive=second)
    assert moved.archive == ArchiveSettings.of(second, keep_ms=60_000), "how much stays in memory stays so"
    assert (await client.create_space("t", ["t/#"], archive=first)).archive == ArchiveSettings.of(first)
    with pytest.raises(SpaceConflict, match="is the archive of another space"):
        await client.alter_space("t", archive=second)
    assert (await client.alter_space("s", archive=second)) == moved, "safe to repeat"


async def test_an_archive_that_moves_in_the_same_moment_moves_once(
    client: Client, second: Client, space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = str(tmp_path / "theirs"), str(tmp_path / "ours")

    async def late(*place: Any) -> None:
        monkeypatch.setattr(spaces_room, "take_place", take_place)
        await second.alter_space("s", archive=theirs)
        await take_place(*place)

    monkeypatch.setattr(spaces_room, "take_place", late)
    with pytest.raises(SpaceConflict, match="got another archive meanwhile"):
        await client.alter_space("s", archive=ours, retention="1h")
    now = await client.spaces.get("s")
    assert now == space.model_copy(update={"archive": ArchiveSettings.of(theirs)})


async def test_a_place_that_others_have_meanwhile_is_not_let_go_again(
    client: Client, second: Client, space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former, now = str(tmp_path / "former"), str(tmp_path / "now")
    await client.alter_space("s", archive=former)

    async def late(*what: Any) -> None:
        monkeypatch.setattr(spaces_room, "check_place", check_place)
        await second.alter_space("s", archive=now)
        await second.create_space("t", ["t/#"], archive=former)

    monkeypatch.setattr(spaces_room, "check_place", late)
    altered = await client.alter_space("s", retention="1h")
    assert (altered.archive, altered.retention.age_ms) == (ArchiveSettings.of(now), 3_600_000)
    with pytest.raises(SpaceConflict, match="is the archive of another space"):
        await client.create_space("u", ["u/#"], archive=former)


REFUSED: dict[str, tuple[Given, type[StreamleaseError], str]] = {
    "age": ({"retention": "7x"}, InvalidInput, "retention '7x' is no duration"),
    "retention": ({"retention": 7}, InvalidInput, "retention is 7: give an age"),
    "compaction": ({"compact_after_ms": 3}, InvalidInput, "cannot be merged after 3 ms"),
    "word": ({"compact_after_ms": "on"}, InvalidInput, "cannot be merged after 'on' ms"),
    "archive": ({"archive": 7}, InvalidInput, "archive is 7: give an address"),
    "schema": ({"schema": 7}, InvalidInput, "a schema is 7"),
    "columns": ({"schema": pa.schema([("sum", pa.int64())])}, SchemaMismatch, "city"),
    "streams": ({"streams": 5_000}, InvalidInput, "cannot have 5000 streams"),
    "text": ({"streams": "4"}, InvalidInput, "cannot have '4' streams"),
    "rotate": ({"rotate": "yes"}, InvalidInput, "rotate is 'yes': use True or False"),
    "expected": ({"streams": 4, "expected": "0"}, InvalidInput, "expected is '0'"),
    "former": ({"streams": 4, "expected": 7}, SpaceConflict, "was altered meanwhile"),
}


@pytest.mark.parametrize("others", [False, True], ids=["alone", "beside others"])
@pytest.mark.parametrize("what", REFUSED)
async def test_what_is_refused_changes_nothing(client: Client, space: Space, what: str, others: bool) -> None:
    given, kind, says = REFUSED[what]
    beside: Given = {"retention": "1h", "streams": 3, "compact_after_ms": 60_000} if others else {}
    with pytest.raises(kind, match=says) as told:
        await client.alter_space("s", **{**beside, **given})
    assert "\n" not in str(told.value)
    assert await client.spaces.get("s") == space


async def test_a_space_that_is_no_name_or_not_there_is_one_line(client: Client, space: Space) -> None:
    with pytest.raises(UnknownSpace, match="there is no space 't'"):
        await client.alter_space("t", retention="1h")
    names: list[Any] = [3, ["s"], None]
    for name in names:
        with pytest.raises(InvalidInput, match="is not a name"):
            await client.alter_space(name, retention="1h")
        with pytest.raises(InvalidInput, match="is not a name"):
            await client.seal_space(name)


async def test_a_sealed_space_has_settings_and_gets_no_streams(client: Client, space: Space) -> None:
    await client.seal_space("s")
    assert (await client.alter_space("s", retention="1h")).retention.age_ms == 3_600_000
    with pytest.raises(StreamSealed):
        await client.alter_space("s", retention="2h", streams=4)
    assert (await client.spaces.get("s")).retention.age_ms == 3_600_000


async def test_publishers_of_epochs_refuse_streams_and_all_that_is_asked_with_them(client: Client) -> None:
    before = await client.create_space("e", ["e/#"], streams=2, epochs=1)
    async with client.epoch_publisher("e", "p") as publisher:
        await publisher.send("e/a", b"x", epoch=3)
        with pytest.raises(SpaceConflict, match="publishers that hold epochs open"):
            await client.alter_space("e", streams=4, retention="1h")
        assert await client.spaces.get("e") == before
        assert (await client.alter_space("e", retention="1h")).retention.age_ms == 3_600_000
    altered = await client.alter_space("e", streams=4, retention="2h")
    assert (altered.newest.streams, altered.retention.age_ms) == (4, 7_200_000)
    with pytest.raises(InvalidInput, match="its entries are never merged"):
        await client.alter_space("e", streams=5, compact_after_ms=60_000)
    assert await client.spaces.get("e") == altered


async def test_a_place_that_cannot_be_written_keeps_the_streams_of_epochs_as_they_are(
    client: Client, space: Space, tmp_path: Path
) -> None:
    """They come first, and the archive behind them; both or none all the same."""
    before = await client.create_space("e", ["e/#"], streams=2, epochs=1)
    (tmp_path / "file").write_text("")
    taken = str(tmp_path / "taken")
    await client.alter_space("s", archive=taken)
    refused: dict[str, type[StreamleaseError]] = {
        str(tmp_path / "file"): ArchiveUnavailable,
        taken: SpaceConflict,
    }
    for place, kind in refused.items():
        with pytest.raises(kind):
            await client.alter_space("e", streams=4, archive=place)
        assert await client.spaces.get("e") == before
    altered = await client.alter_space("e", streams=4, archive=str(tmp_path / "free"))
    assert (altered.newest.streams, altered.archive) == (4, ArchiveSettings.of(str(tmp_path / "free")))


def test_blocking(real_redis_url: str) -> None:
    with blocking.connect(real_redis_url) as client:
        client.create_space("s", ["s/#"])
        altered = client.alter_space("s", retention="1h", streams=2)
    assert (altered.retention.age_ms, altered.newest.streams) == (3_600_000, 2)
