"""What a subscriber of a space with epochs may rely on, promise by promise, with real publishers and keepers.

E1 to E11 are the promises of Strymon's protocol, in the words of this package. All of it is the public
interface, on every kind of server; a keeper runs in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest

from streamlease.agent.client import Client, connect
from streamlease.agent.epochs.epoch_items import Frontier, Snapshot
from streamlease.agent.epochs.epoch_reading import EpochSubscription
from streamlease.protocol.epochs.antichains import changes, is_open, is_seen
from streamlease.protocol.epochs.order import Epoch
from streamlease.streams.epochs import boundary_reading, stretch_reading
from tests.admin.command import SCRIPT
from tests.epochs.playing import SECONDS, epochs_of, everything, shown

ALL = "clicks/#"
MODES = ("atomic", "eager")
Mode = Literal["atomic", "eager"]


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Client]:
    async with connect(redis_url) as client:
        await client.create_space("clicks", [ALL], streams=4, epochs=1)
        yield client


async def send(publisher: Any, epoch: int | Epoch, *texts: str) -> None:
    """Each text under a topic of its own, so in several streams."""
    for text in texts:
        await publisher.send(f"clicks/{text}", text.encode(), epoch=epoch)


async def until_frontier(items: EpochSubscription, lower: int) -> list[Any]:
    """The items up to the frontier that has reached so far."""
    found: list[Any] = []
    async with asyncio.timeout(SECONDS):
        while not (found and found[-1][0] == "frontier" and found[-1][1][0][0] >= lower):
            found.append(shown(await anext(items)))
    return found


def texts_of(items: list[Any]) -> dict[int, list[str]]:
    """The texts of each epoch, whole or in parts."""
    found: dict[int, list[str]] = {}
    for item in items:
        if isinstance(item[0], tuple):
            found.setdefault(item[0][0], []).extend(item[-1])
    return {epoch: sorted(texts) for epoch, texts in found.items()}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.slow
async def test_e1_a_skipped_epoch_completes(client: Client, mode: Mode) -> None:
    async with client.listen(ALL, epochs=mode) as items, client.epoch_publisher("clicks", "a") as a:
        await a.advance([2])
        await send(a, 2, "x")
        await a.advance([9])
        found = await until_frontier(items, 9)
    assert texts_of(found) == {2: ["x"]}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.slow
async def test_e2_the_snapshot_is_first_and_once_and_e10_how_it_begins(client: Client, mode: Mode) -> None:
    async with client.listen(ALL, epochs=mode) as items, client.epoch_publisher("clicks", "a") as a:
        for epoch in range(3):
            await send(a, epoch, f"x{epoch}")
            await a.advance([epoch + 1])
        found = await until_frontier(items, 3)
    assert found[0] == ("snapshot", [(0,)], []), "lower is the bottom, upper is empty"
    assert [one for one in found if one[0] == "snapshot"] == found[:1]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.slow
async def test_e3_all_of_an_epoch_or_none_whenever_one_joins(client: Client, mode: Mode) -> None:
    chance = random.Random(mode)
    wanted = {epoch: sorted(f"{name}{epoch}.{n}" for name in "ab" for n in range(4)) for epoch in range(24)}
    joined: list[asyncio.Task[list[Any]]] = []

    async def listen() -> list[Any]:
        async with client.listen(ALL, epochs=mode) as items:
            return await until_frontier(items, 24)

    async def publish(name: str) -> None:
        async with client.epoch_publisher("clicks", name) as publisher:
            for epoch in range(24):
                await send(publisher, epoch, *(f"{name}{epoch}.{n}" for n in range(4)))
                if chance.random() < 0.3:
                    joined.append(asyncio.create_task(listen()))
                if chance.random() < 0.7:
                    await publisher.advance([epoch + 1])
            await publisher.advance([24])

    joined.append(asyncio.create_task(listen()))
    await asyncio.gather(publish("a"), publish("b"))
    async with client.epoch_publisher("clicks", "a") as last:
        await last.advance([25])
        for task in joined:
            found = texts_of(await task)
            assert found.items() <= wanted.items(), "some epoch is not whole"
            epochs = sorted(found)
            assert epochs == [*range(24 - len(epochs), 24)], "an epoch in between is missing"
    assert any(texts_of(task.result()) for task in joined)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.slow
async def test_e4_what_was_active_is_left_out_whole(client: Client, mode: Mode) -> None:
    async with client.epoch_publisher("clicks", "a") as a, client.epoch_publisher("clicks", "b") as b:
        await a.advance([3])
        await b.advance([3])
        await send(a, 3, "a3")
        await send(b, 5, "b5")
        async with client.listen(ALL, epochs=mode) as items:
            snapshot = await anext(items)
            assert isinstance(snapshot, Snapshot)
            assert snapshot.upper == ((5,),)
            for epoch in (4, 5, 6):
                await send(a, epoch, f"a{epoch}")
            await a.advance([7])
            await b.advance([7])
            assert texts_of(await until_frontier(items, 7)) == {6: ["a6"]}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.slow
async def test_e5_two_spaces_are_filtered_as_one(client: Client, mode: Mode) -> None:
    await client.create_space("views", ["views/#"], epochs=1)
    async with client.epoch_publisher("clicks", "a") as a, client.epoch_publisher("views", "b") as b:
        await send(a, 2, "active")
        async with client.listen("#", epochs=mode) as items:
            snapshot = await anext(items)
            assert (shown(snapshot)[1], shown(snapshot)[2]) == ([(0,)], [(2,)])
            for epoch in (1, 2, 3):
                await b.send("views/v", b"v%d" % epoch, epoch=epoch)
            await send(a, 3, "a3")
            await b.advance([4])
            await a.advance([4])
            assert texts_of(await until_frontier(items, 4)) == {3: ["a3", "v3"]}


async def test_e6_who_wants_no_filter_reads_the_streams(client: Client) -> None:
    async with client.epoch_publisher("clicks", "a") as a:
        await send(a, 2, "active")
        async with client.listen(ALL) as batches:
            await send(a, 1, "too")
            await a.advance([3])
            found: list[str] = []
            async with asyncio.timeout(SECONDS):
                while len(found) < 2:
                    found += [message.payload.decode() for message in (await anext(batches)).messages]
    assert sorted(found) == ["active", "too"]


async def test_e7_what_is_left_out_is_never_read(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Epoch] = []
    real = stretch_reading.StretchReader.read

    async def noted(self: stretch_reading.StretchReader) -> Any:
        read.append(self.epoch)
        return await real(self)

    monkeypatch.setattr(stretch_reading.StretchReader, "read", noted)
    async with client.epoch_publisher("clicks", "a") as a:
        await send(a, 4, "active")
        async with client.listen(ALL, epochs="atomic") as items:
            await send(a, 5, "x")
            await a.advance([6])
            assert texts_of(await until_frontier(items, 6)) == {5: ["x"]}
    assert read == [(5,)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.slow
async def test_e8_net_changes_come_to_the_frontier(client: Client, mode: Mode) -> None:
    await client.create_space("grid", ["grid/#"], epochs=2)
    async with (
        client.listen("grid/#", epochs=mode) as items,
        client.epoch_publisher("grid", "a") as a,
        client.epoch_publisher("grid", "b") as b,
    ):
        for to in ([(1, 0), (0, 1)], [(2, 0), (0, 1)], [(2, 1)]):
            await a.advance(to)
            await b.advance(to)
        first = await anext(items)
        assert isinstance(first, Snapshot)
        told = first.lower
        async with asyncio.timeout(SECONDS):
            while told != ((2, 1),):
                item = await anext(items)
                assert isinstance(item, Frontier)
                assert item.changes, "nothing is told without a change"
                assert item.changes == changes(told, item.lower)
                told = item.lower


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.slow
async def test_e9_the_filter_shrinks_as_the_frontier_advances(client: Client, mode: Mode) -> None:
    """In two dimensions an old element would leave out late epochs for ever, were it kept."""
    await client.create_space("grid", ["grid/#"], epochs=2)
    async with client.epoch_publisher("grid", "a") as a:
        await a.send("grid/t", b"active", epoch=(1, 5))
        async with client.listen("grid/#", epochs=mode) as items:
            first = await anext(items)
            assert isinstance(first, Snapshot)
            assert first.upper == ((1, 5),)
            assert items._reader is not None
            merged = items._reader._merged
            assert merged._filter.upper == ((1, 5),)
            await a.send("grid/t", b"left out", epoch=(0, 5))
            await a.send("grid/t", b"seen", epoch=(0, 6))
            await a.advance([(2, 0), (0, 7)])
            async with asyncio.timeout(SECONDS):
                found = [shown(await anext(items))]
                while found[-1][0] != "frontier":
                    found.append(shown(await anext(items)))
            assert [one[-1] for one in found[:-1]] == [["seen"]]
            assert merged._filter.upper == ()
            assert not is_open(merged.lower, (1, 5)) and is_seen(first.upper, (0, 5))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.slow
async def test_e11_who_breaks_off_harms_nobody(client: Client, mode: Mode) -> None:
    async with client.epoch_publisher("clicks", "a") as a, client.listen(ALL, epochs=mode) as stays:
        with contextlib.suppress(ZeroDivisionError):
            async with client.listen(ALL, epochs=mode) as other:
                await anext(other)
                await send(a, 0, "x")
                raise ZeroDivisionError
        late = client.listen(ALL, epochs=mode)
        async with late:
            await anext(late)
            await send(a, 1, "y")
            await a.advance([2])
            assert texts_of(await until_frontier(stays, 2)) == {0: ["x"], 1: ["y"]}
            assert texts_of(await until_frontier(late, 2)) == {1: ["y"]}


# -- beyond one process --------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_who_is_killed_goes_on_at_its_position(real_redis_url: str) -> None:
    """Epochs behind the position come again, whole; none is missing, and none is seen in part."""
    seen: dict[int, list[str]] = {}
    start: Any = "earliest"
    wanted = {epoch: sorted(f"{epoch}.{n}" for n in range(5)) for epoch in range(30)}
    async with connect(real_redis_url) as client:
        await client.create_space("clicks", [ALL], streams=4, epochs=1)

        async def publish() -> None:
            async with client.epoch_publisher("clicks", "a") as publisher:
                for epoch in range(30):
                    await send(publisher, epoch, *(f"{epoch}.{n}" for n in range(5)))
                    if epoch % 3 == 2:
                        await publisher.advance([epoch + 1])

        publishing = asyncio.create_task(publish())
        starts = 0
        while len(seen) < 30:
            starts += 1
            words = (sys.executable, "-m", "tests.epochs.reading_program", real_redis_url, json.dumps(start))
            process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
            assert process.stdout is not None
            try:
                async with asyncio.timeout(SECONDS):
                    for _ in range(11):
                        line = json.loads(await process.stdout.readline())
                        start = line["positions"]
                        if "epoch" in line:
                            assert seen.setdefault(line["epoch"], line["texts"]) == line["texts"]
                        if len(seen) == 30:
                            break
            finally:
                process.kill()
                await process.wait()
        await publishing
        assert starts >= 3
        assert seen == wanted
        assert epochs_of(await everything(client.history(ALL, epochs="atomic"))) == {
            (epoch,): texts for epoch, texts in wanted.items()
        }


async def test_readers_of_two_clients_agree(real_redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundary_reading, "AT_ONCE", 3)
    async with connect(real_redis_url) as client, connect(real_redis_url) as second:
        await client.create_space("clicks", [ALL], streams=3, epochs=1)
        async with (
            client.listen(ALL, start="earliest", epochs="atomic") as one,
            second.listen(ALL, start="earliest", epochs="atomic") as two,
            client.epoch_publisher("clicks", "a") as a,
            second.epoch_publisher("clicks", "b") as b,
        ):
            first = asyncio.create_task(until_frontier(one, 15))
            for epoch in range(15):
                await asyncio.gather(send(a, epoch, f"a{epoch}"), send(b, epoch, f"b{epoch}"))
                await asyncio.gather(a.advance([epoch + 1]), b.advance([epoch + 1]))
            assert await first == await until_frontier(two, 15)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.slow
async def test_a_reader_across_the_death_of_a_keeper(real_redis_url: str, tmp_path: Path, mode: Mode) -> None:
    """The process that keeps the space is killed at work; another one goes on, and the reader with it."""
    serve = [str(SCRIPT), "serve", "--redis", real_redis_url, "--http-port", "0"]
    wanted = {epoch: sorted(f"{epoch}.{n}" for n in range(20)) for epoch in range(30)}
    kept = asyncio.Event()

    async def host() -> asyncio.subprocess.Process:
        quiet = asyncio.subprocess.DEVNULL
        return await asyncio.create_subprocess_exec(*serve, stdout=quiet, stderr=quiet, cwd=tmp_path)

    async with connect(real_redis_url, embedded=False) as client:
        await client.create_space("clicks", [ALL], streams=4, epochs=1)
        first = await host()
        processes = [first]
        try:
            async with client.listen(ALL, start="earliest", epochs=mode) as items:

                async def publish() -> None:
                    async with client.epoch_publisher("clicks", "a") as publisher:
                        for epoch in range(30):
                            await send(publisher, epoch, *(f"{epoch}.{n}" for n in range(20)))
                            await publisher.advance([epoch + 1])
                            if epoch == 0:
                                await kept.wait()
                            elif epoch == 10:
                                first.kill()

                publishing = asyncio.create_task(publish())
                found = await until_frontier(items, 1)
                kept.set()
                assert await first.wait() == -signal.SIGKILL
                processes.append(await host())
                found += await until_frontier(items, 30)
                assert texts_of(found) == wanted
                await publishing
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
