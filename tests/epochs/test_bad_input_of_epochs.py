"""Every bad value of epochs and collections is refused in one line with a remedy, and nothing is written.

Each row is an act in the asynchronous client and, where the blocking one has it, the same act there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from streamlease.agent.blocking import connect as connect_blocking
from streamlease.agent.client import Client, connect
from streamlease.protocol.epochs.order import HIGHEST_EPOCH
from streamlease.protocol.errors import (
    Fenced,
    InvalidEpoch,
    InvalidInput,
    InvalidOption,
    NotCapable,
    StreamleaseError,
    StreamSealed,
    UnknownSpace,
)
from streamlease.streams.log.keys import SPACE_DEFINITIONS
from streamlease.streams.redis.connection import ask

SPACES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("one", {"epochs": 1}),
    ("two", {"epochs": 2}),
    ("plain", {}),
    ("col", {"collection": True}),
    ("ecol", {"collection": True, "epochs": 1}),
)
BATCH = pa.record_batch({"payload": pa.array([b"x"])})


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Client]:
    async with connect(redis_url, embedded=False) as client:
        for name, options in SPACES:
            await client.create_space(name, [f"{name}/#"], **options)
        yield client


class Bad(NamedTuple):
    """What is refused: how it is called, and what it says."""

    what: str
    kind: type[StreamleaseError]
    said: str
    act: Callable[[Any], Any]


INTEGERS = f"give integers from 0 to {HIGHEST_EPOCH}"
ONE = "and the space 1: give one integer, such as 0"
NO_DIFF = "is no whole number of 64 bits: give one, such as 1 or -1"
NOT_HELD = "holds 5 and cannot send at epoch 4: what was given up does not come back; send at what it holds"

OF_A_PUBLISHER = [
    *(
        Bad(
            f"send at {epoch!r}",
            InvalidEpoch,
            said,
            lambda pub, epoch=epoch: pub.send("one/a", b"x", epoch=epoch),
        )
        for epoch, said in (
            ((1, 2), f"epoch (1, 2) has 2 dimensions, {ONE}"),
            ([], f"epoch [] has 0 dimensions, {ONE}"),
            (-1, f"epoch -1: {INTEGERS}"),
            (HIGHEST_EPOCH + 1, f"epoch {HIGHEST_EPOCH + 1}: {INTEGERS}"),
            (4.0, f"epoch 4.0: {INTEGERS}"),
            ("4", f"epoch '4': {INTEGERS}"),
            (True, f"epoch True: {INTEGERS}"),
            (None, f"epoch None: {INTEGERS}"),
        )
    ),
    Bad("many", InvalidEpoch, INTEGERS, lambda pub: pub.send_many("one/a", [b"x"], epoch=-1)),
    Bad("a batch", InvalidEpoch, INTEGERS, lambda pub: pub.send_batch("one/a", BATCH, epoch=-1)),
    Bad("submitted", InvalidEpoch, INTEGERS, lambda pub: pub.submit("one/a", b"x", epoch=-1)),
    Bad("given up", NotCapable, NOT_HELD, lambda pub: pub.send("one/a", b"x", epoch=4)),
    Bad("many, given up", NotCapable, NOT_HELD, lambda pub: pub.send_many("one/a", [b"x"], epoch=4)),
    Bad("submitted, given up", NotCapable, NOT_HELD, lambda pub: pub.submit("one/a", b"x", epoch=4)),
    Bad("a batch, given up", NotCapable, NOT_HELD, lambda pub: pub.send_batch("one/a", BATCH, epoch=4)),
    Bad(
        "back", NotCapable, "holds 5 and cannot go back to 3: advance to what is", lambda pub: pub.advance(3)
    ),
    *(
        Bad(f"advance to {to!r}", InvalidEpoch, said, lambda pub, to=to: pub.advance(to))
        for to, said in (
            (-1, INTEGERS),
            (HIGHEST_EPOCH + 1, INTEGERS),
            ([], "frontier []: give a list of at least one epoch"),
            (True, "frontier True: give a list of at least one epoch"),
            ("7", "frontier '7': give a list of at least one epoch"),
            ([(7, 8)], f"epoch (7, 8) has 2 dimensions, {ONE}"),
            ([7, 8], "one of its epochs is at most another; give only [(7,)]"),
        )
    ),
    Bad(
        "a diff",
        InvalidInput,
        "no collection, so its messages have no diff: leave it out",
        lambda pub: pub.send("one/a", b"x", diff=1, epoch=5),
    ),
    Bad(
        "another space",
        InvalidInput,
        "a topic of space two cannot be sent to by a publisher of space one",
        lambda pub: pub.send("two/a", b"x", epoch=5),
    ),
    Bad(
        "a space without epochs",
        InvalidInput,
        "a topic of space plain cannot be sent to by a publisher",
        lambda pub: pub.send("plain/a", b"x", epoch=5),
    ),
    Bad(
        "no space",
        UnknownSpace,
        "no space has topics that match 'nosuch/a'",
        lambda pub: pub.send("nosuch/a", b"x", epoch=5),
    ),
]

OF_A_COLLECTION = [
    *(
        Bad(
            f"diff {diff!r}",
            InvalidInput,
            said,
            lambda pub, diff=diff: pub.send("ecol/a", b"x", diff=diff, epoch=0),
        )
        for diff, said in (
            (0, "a diff of 0 changes nothing: leave the message out, or give another diff"),
            (1 << 63, NO_DIFF),
            (-(1 << 63) - 1, NO_DIFF),
            (1.0, f"diff 1.0 {NO_DIFF}"),
            ("1", f"diff '1' {NO_DIFF}"),
            (True, f"diff True {NO_DIFF}"),
        )
    ),
    *(
        Bad(
            f"diffs {diffs!r}",
            InvalidInput,
            said,
            lambda pub, diffs=diffs: pub.send_many("ecol/a", [b"x"], diffs=diffs, epoch=0),
        )
        for diffs, said in (
            ([0], "a diff of 0 changes nothing"),
            ([1 << 63], NO_DIFF),
            (["1"], NO_DIFF),
            ([1, 2], "there are 2 diffs for 1 payloads: give one for each"),
            (5, "diffs is 5: give a list, with one for each payload"),
        )
    ),
    *(
        Bad(
            f"a column {values!r}",
            InvalidInput,
            said,
            lambda pub, values=values: pub.send_batch(
                "ecol/a", pa.record_batch({"payload": pa.array([b"x"]), "diff": pa.array(values)}), epoch=0
            ),
        )
        for values, said in (
            ([0], "a diff of 0 changes nothing"),
            ([1.0], "column diff of the batch has the type double: give whole numbers, int64"),
            (["1"], "column diff of the batch has the type string: give whole numbers, int64"),
            ([None], "column diff of the batch has 1 nulls: each message needs one"),
        )
    ),
]


async def _entered(client: Any, space: str, name: str = "p", **options: Any) -> None:
    async with client.epoch_publisher(space, name, **options):
        pass


async def _opened(opening: Any) -> None:
    async with opening:
        pass


async def _sent(client: Any, *args: Any, **options: Any) -> None:
    async with client.publisher() as pub:
        await pub.send(*args, **options)


def _create(**options: Any) -> Callable[[Any], Any]:
    return lambda client: client.create_space("new", ["new/#"], **options)


NOT_A_NAME = "is not a name: use 1 to 63 letters, digits, '_' or '-'"
HAS_EPOCHS = (
    "space one has epochs, so its messages come from publishers with a name: use client.epoch_publisher"
)
OF_A_CLIENT = [
    *(
        Bad(
            f"name {name!r}",
            InvalidInput,
            NOT_A_NAME,
            lambda client, name=name: _entered(client, "one", name),
        )
        for name in ("", "a b", "a/b", "!x", "x" * 64, "\xfc", None)
    ),
    Bad(
        "no epochs",
        InvalidInput,
        "space plain has no epochs, so messages need no publisher with a name",
        lambda client: _entered(client, "plain"),
    ),
    Bad("no space", UnknownSpace, "there is no space 'nosuch'", lambda client: _entered(client, "nosuch")),
    Bad(
        "sealed",
        StreamSealed,
        "is sealed and takes no more messages: use another space",
        lambda client: _entered(client, "sealed"),
    ),
    Bad("without a name", InvalidInput, HAS_EPOCHS, lambda client: _sent(client, "one/a", b"x")),
    Bad(
        "a diff in no collection",
        InvalidInput,
        "space plain is no collection, so its messages have no diff",
        lambda client: _sent(client, "plain/a", b"x", diff=1),
    ),
    Bad(
        "a diff of 0",
        InvalidInput,
        "a diff of 0 changes nothing",
        lambda client: _sent(client, "col/a", b"x", diff=0),
    ),
    *(
        Bad(f"{dimensions!r} dimensions", InvalidOption, "give 1 to 8", _create(epochs=dimensions))
        for dimensions in (9, -1, True, "1", None)
    ),
    Bad("no time-out", InvalidOption, "epochs_timeout", _create(epochs=1, epochs_timeout=0.0)),
    Bad("a time-out without epochs", InvalidOption, "has no epochs", _create(epochs_timeout=30.0)),
    Bad("on loss", InvalidOption, "use 'abort' or 'wait'", _create(epochs=1, epochs_on_loss="weep")),
    Bad("a collection", InvalidOption, "collection is 'yes': use True or False", _create(collection="yes")),
    Bad(
        "of no collection",
        InvalidOption,
        "space plain, which is no collection: narrow the filter",
        lambda client: _opened(client.collection("plain/#")),
    ),
    Bad(
        "of a group",
        InvalidOption,
        "names a group",
        lambda client: _opened(client.collection("$shared/g/col/#")),
    ),
    Bad(
        "of no space",
        UnknownSpace,
        "no space has topics",
        lambda client: _opened(client.collection("nosuch/#")),
    ),
    *(
        Bad(
            f"from {start!r}",
            kind,
            said,
            lambda client, start=start: _opened(client.collection("col/#", start=start)),
        )
        for start, kind, said in (
            ("earliest", InvalidOption, "use the positions of a collection, or None"),
            ({"col.0.0": -1}, InvalidOption, "offsets begin at 0"),
            ({"col.0.0": "1"}, InvalidOption, "offsets begin at 0"),
            ({"col.0.0": 99}, InvalidInput, "stream col.0.0 never had offset 98, its next one is 0"),
            ({"col": 1}, InvalidOption, "start has the stream 'col': give names of streams"),
            ({1: 1}, InvalidOption, "start has the stream 1: give names of streams"),
        )
    ),
    *(
        Bad(
            f"epochs {mode!r}",
            InvalidOption,
            "use 'atomic', 'eager' or 'off'",
            lambda client, mode=mode: _opened(client.listen("one/#", epochs=mode)),
        )
        for mode in ("weird", "", None, 1)
    ),
    Bad(
        "atomic, without epochs",
        InvalidOption,
        "space plain, which has no epochs: narrow the filter",
        lambda client: _opened(client.listen("plain/#", epochs="atomic")),
    ),
    Bad(
        "of two kinds",
        InvalidOption,
        "has topics of space",
        lambda client: _opened(client.listen("+/a", epochs="eager")),
    ),
    Bad(
        "never had it",
        InvalidInput,
        "never had offset 98",
        lambda client: _opened(client.listen("one/#", start={"one.0.0": 99}, epochs="atomic")),
    ),
    Bad(
        "a wrong start",
        InvalidOption,
        "start is 'first': use 'earliest'",
        lambda client: _opened(client.listen("one/#", start="first", epochs="atomic")),
    ),
]

ROWS = {"publisher": 27, "collection": 15, "client": 39}
"""So many rows must have been refused; one that vanishes is missed."""


NOTES = (b"sl:{m:", b"sl:{catalog}:", b"sl:{spaces}:topics", b"sl:{spaces}:changes")
"""Letters, and what the catalog says of the publishers and their topics: noted in the background."""


async def keys_of(client: Client) -> dict[bytes, Any]:
    """All that stands in Redis but signs of life, claims and notes."""
    (names,) = await ask(client.redis, [("KEYS", "sl:*")])
    kept = sorted(
        name for name in names if not name.startswith(NOTES) and not name.endswith((b":writers", b":leader"))
    )
    definitions = SPACE_DEFINITIONS.encode()
    # A hash of long values stands in another order once Redis has moved it.
    found = await ask(client.redis, [("HGETALL" if name == definitions else "DUMP", name) for name in kept])
    return {
        name: sorted(zip(value[::2], value[1::2], strict=True)) if name == definitions else value
        for name, value in zip(kept, found, strict=True)
    }


async def refused(client: Client, rows: list[Bad], made: Callable[[Bad], Awaitable[Any]]) -> Counter[str]:
    before, seen = await keys_of(client), Counter[str]()
    for row in rows:
        with pytest.raises(row.kind) as caught:
            await made(row)
        told = str(caught.value)
        assert row.said in told, row.what
        assert "\n" not in told and len(told) < 400, row.what
        assert await keys_of(client) == before, row.what
        seen[row.what] += 1
    assert set(seen.values()) == {1}, "each row has a name of its own"
    return seen


@pytest.mark.slow
async def test_a_publisher_refuses_each_in_one_line(client: Client) -> None:
    async with client.epoch_publisher("one", "p") as pub:
        await pub.advance(5)
        found = await refused(client, OF_A_PUBLISHER, lambda row: row.act(pub))
        assert len(found) == ROWS["publisher"]
        assert pub.frontier == [(5,)]
        await pub.send("one/a", b"x", epoch=5)


@pytest.mark.slow
async def test_a_collection_refuses_each_in_one_line(client: Client) -> None:
    async with client.epoch_publisher("ecol", "p") as pub:
        assert len(await refused(client, OF_A_COLLECTION, lambda row: row.act(pub))) == ROWS["collection"]


@pytest.mark.slow
async def test_a_client_refuses_each_in_one_line(client: Client) -> None:
    await client.create_space("sealed", ["sealed/#"], epochs=1)
    await client.spaces.generations.seal("sealed")
    assert len(await refused(client, OF_A_CLIENT, lambda row: row.act(client))) == ROWS["client"]


async def test_the_blocking_client_says_the_same(client: Client, redis_url: str) -> None:
    def at_once() -> int:
        with connect_blocking(redis_url, embedded=False) as blocking:
            with blocking.epoch_publisher("one", "b") as pub:
                pub.advance(5)
                told = [_told(row, pub) for row in OF_A_PUBLISHER if row.what != "submitted"]
            with blocking.epoch_publisher("ecol", "b") as pub:
                told += [_told(row, pub) for row in OF_A_COLLECTION]
            return len(told)

    assert await asyncio.to_thread(at_once) == ROWS["publisher"] + ROWS["collection"] - 1


def _told(row: Bad, pub: Any) -> str:
    with pytest.raises(row.kind) as caught:
        row.act(pub)
    assert row.said in str(caught.value), row.what
    return row.what


async def test_of_two_processes_under_one_name_the_first_is_told(client: Client) -> None:
    with pytest.raises(Fenced):
        async with client.epoch_publisher("one", "p") as first:
            await first.send("one/a", b"x", epoch=first.frontier[0])
            async with client.epoch_publisher("one", "p") as second:
                for act in (
                    lambda: first.advance(first.frontier[0][0] + 1),  # where it is found out at the latest
                    lambda: first.send("one/a", b"y", epoch=first.frontier[0]),
                    first.flush,
                ):
                    with pytest.raises(
                        Fenced, match="publisher p of space one is not there any more: another"
                    ) as told:
                        await act()
                    assert "\n" not in str(told.value)
                await second.advance(9)
