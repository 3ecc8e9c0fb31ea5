"""The client of the gateway follows a filter: the same messages, once and in order, however pushes fare."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streamlease import http
from streamlease.protocol.errors import TaskFailed
from tests.agent.test_holes import lose_tail
from tests.gateway.conftest import Client
from tests.gateway.http_client import HttpClient
from tests.http_client.faulty_proxy import EVERYTHING, Faults, FaultyProxy, between

MODES: dict[str, dict[str, Any]] = {
    "push only": {"pull": False},
    "pull only": {"push": False},
    "both": {},
}
FAULTS = {
    "dropped": Faults(drop=0.3),
    "doubled": Faults(double=0.5),
    "reordered": Faults(hold=0.3),
    "delayed": Faults(delay=0.5, seconds=0.05),
    "cut": Faults(cut=0.1, no_answer=0.2),
    "all": EVERYTHING,
}
QUICK = (0.05, 0.5)


async def publish(client: Client, first: int, last: int) -> None:
    """Numbered messages; every third one is for nobody."""
    async with client.publisher() as publisher:
        for number in range(first, last):
            level = "other" if number % 3 == 2 else "wanted"
            await publisher.send(f"a/{level}/{number % 7}", str(number), key=str(number % 5))


async def truth(client: Client) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    async with client.history("a/wanted/+") as reading:
        async for batch in reading:
            found += [(message.stream, message.offset) for message in batch.messages]
    return sorted(found)


async def take(pages: http.PageFollower, count: int) -> list[tuple[str, int]]:
    """So many messages at least."""
    found: list[tuple[str, int]] = []
    while len(found) < count:
        page = await asyncio.wait_for(anext(pages), 60)
        found += [(message.stream, message.offset) for message in page.messages]
    return found


def check(found: list[tuple[str, int]], expected: list[tuple[str, int]]) -> None:
    """Each one once, and those of a stream in order."""
    assert sorted(found) == expected
    places: dict[str, int] = {}
    for stream, offset in found:
        assert offset > places.get(stream, -1), (stream, offset)
        places[stream] = offset


OF_ANSWERS = ("delay", "cut", "no_answer")
"""What happens also to who only asks; the others are done to pushes."""


def happened(proxy: FaultyProxy, faults: Faults, mode: str) -> bool:
    """Whether something of it did."""
    kinds = OF_ANSWERS if mode == "pull only" else proxy.done
    return any(proxy.done[kind] for kind in kinds if getattr(faults, kind))


@pytest.mark.parametrize(
    ("mode", "faults"),
    [
        (mode, faults)
        for mode in MODES
        for faults, some in FAULTS.items()
        if mode != "pull only" or any(getattr(some, kind) for kind in OF_ANSWERS)
    ],
)
async def test_the_same_messages_whatever_becomes_of_pushes(
    client: Client, gateway: HttpClient, mode: str, faults: str
) -> None:
    await client.create_space("s", ["a/#"], streams=3)
    await publish(client, 0, 60)
    async with between(gateway.port, FAULTS[faults], seed=11) as proxy, http.connect(proxy.url) as service:
        limit = 5 if mode == "pull only" else 1000
        async with service.follow("a/wanted/+", "earliest", quiet=QUICK, limit=limit, **MODES[mode]) as pages:
            found = await take(pages, 40)
            publishing = asyncio.ensure_future(publish(client, 60, 150))
            found += await take(pages, 60)
            await publishing
            counts = pages.counts
        check(found, await truth(client))
        if mode != "pull only" and faults in ("dropped", "reordered", "all"):
            assert counts.gaps and counts.failed_subscriptions, counts
        assert bool(counts.subscriptions) == (mode != "pull only")
        assert happened(proxy, FAULTS[faults], mode), proxy.done


@pytest.mark.parametrize("seed", range(3))
async def test_a_cursor_is_all_that_a_client_needs_after_a_restart(
    client: Client, gateway: HttpClient, seed: int
) -> None:
    """A program that ends and begins again with what it kept, in another mode, at another place each time."""
    await client.create_space("s", ["a/#"], streams=3)
    async with between(gateway.port, EVERYTHING, seed) as proxy:
        kept, found = "earliest", []
        publishing = asyncio.ensure_future(publish(client, 0, 180))
        for turn in range(12):
            async with (
                http.connect(proxy.url) as service,
                service.follow(
                    "a/wanted/+", kept, quiet=QUICK, limit=7, **[*MODES.values()][turn % 3]
                ) as pages,
            ):
                found += await take(pages, 5 if turn < 11 else 120 - len(found))
                kept = pages.cursor
        await publishing
    check(found, await truth(client))


async def test_a_subscription_from_now_on_misses_nothing_behind_its_first_answer(
    client: Client, gateway: HttpClient
) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, 0, 3)
    url = f"http://127.0.0.1:{gateway.port}"
    async with http.connect(url) as service:
        begin = await service.since("a/#")
        assert begin.messages == ()
        await publish(client, 3, 6)
        async with service.follow("a/#", begin.next) as pages:
            page = await anext(pages)
            found = [*page.messages]
            while len(found) < 3:
                found += (await anext(pages)).messages
    assert [message.payload for message in found] == [b"3", b"4", b"5"]
    assert (found[0].topic, found[0].key, found[0].previous) == ("a/wanted/3", b"3", 2)
    assert found[0].timestamp.tzinfo is not None


async def test_truncated_history_names_the_cursor_to_go_on_with(client: Client, gateway: HttpClient) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, 0, 3)
    async with http.connect(f"http://127.0.0.1:{gateway.port}") as service:
        begin = await service.since("a/#", "earliest", limit=1)
        await client.spaces.delete("s")
        await client.create_space("s", ["a/#"])
        await publish(client, 0, 3)
        for mode in MODES.values():
            async with service.follow("a/#", begin.next, **mode) as pages:
                with pytest.raises(http.CursorTruncated) as caught:
                    await anext(pages)
        async with service.follow("a/#", caught.value.oldest) as pages:
            assert len(await take(pages, 3)) == 3


@pytest.mark.parametrize("mode", MODES)
async def test_messages_that_redis_lost_are_told_or_passed_over(
    client: Client, gateway: HttpClient, mode: str
) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, 0, 6)
    async with http.connect(f"http://127.0.0.1:{gateway.port}") as service:
        quick = {**MODES[mode], "quiet": QUICK}
        careful = service.follow("a/#", "earliest", **quick)
        carefree = service.follow("a/#", "earliest", fail_on_loss=False, **quick)
        async with careful, carefree:
            for pages in (careful, carefree):
                assert len(await take(pages, 6)) == 6
            taking = asyncio.ensure_future(take(carefree, 2))
            telling = asyncio.ensure_future(take(careful, 1))
            await lose_tail(client, 4)
            with pytest.raises(http.CursorTruncated) as told:
                await telling
            assert told.value.problem == "history-lost"
            while not carefree.counts.losses:  # noqa: ASYNC110 (of another task)
                await asyncio.sleep(0.01)
            await publish(client, 6, 8)
            assert [offset for _, offset in await taking] == [7, 8]
            page = await service.since("a/#", told.value.oldest)
            assert [message.offset for message in page.messages] == [7, 8]


async def test_a_task_that_is_cancelled_by_nobody_is_told(
    client: Client, gateway: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancelled(*_: object, **__: object) -> None:
        raise asyncio.CancelledError("from what it waited for")

    await client.create_space("s", ["a/#"])
    async with (
        asyncio.timeout(30),
        http.connect(f"http://127.0.0.1:{gateway.port}") as service,
        service.follow("a/#", "earliest", push=False) as pages,
    ):
        monkeypatch.setattr(service._connection, "exchange", cancelled)
        with pytest.raises(TaskFailed, match="following a/#: a question ended by a defect"):
            await anext(pages)
