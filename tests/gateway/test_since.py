"""Since-queries and long polls: all after a point, never silently less, at any gateway."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from streamlease.gateway.core.rates import GatewayLimits
from streamlease.gateway.metrics import COUNTS
from streamlease.protocol.ids import StreamId
from streamlease.streams.spaces.retention import Retention, Trim, trim
from tests.gateway.conftest import Client, Start, running
from tests.gateway.http_client import HttpClient


async def publish(client: Client, *messages: tuple[str, str]) -> None:
    async with client.publisher() as publisher:
        for topic, payload in messages:
            await publisher.send(topic, payload)


def payloads(document: Any) -> list[str]:
    return [message["payload"] for message in document["messages"]]


async def ask(http: HttpClient, **parameters: Any) -> Any:
    answer = await http.get("/v1/messages", **parameters)
    assert answer.status == 200, answer.body
    return answer.json()


async def read_on(
    http: HttpClient, since: str, filter: str = "#", **parameters: Any
) -> tuple[list[str], str]:
    """All that comes after a cursor, in small steps, and the cursor behind it."""
    found: list[str] = []
    while True:
        document = await ask(http, filter=filter, since=since, **parameters)
        if not document["messages"]:
            return found, document["next"]
        found += payloads(document)
        since = document["next"]


async def test_all_after_a_cursor_and_the_cursor_itself_excluded(client: Client, gateway: HttpClient) -> None:
    await client.create_space("s", ["a/#"], streams=4)
    await publish(client, *((f"a/{n % 7}", str(n)) for n in range(20)))
    first = await ask(gateway, filter="a/#", since="earliest", limit=5)
    assert len(first["messages"]) == 5
    rest, end = await read_on(gateway, first["next"], limit=3)
    assert sorted(payloads(first) + rest, key=int) == [str(n) for n in range(20)]
    assert await read_on(gateway, end) == ([], end)
    await publish(client, ("a/1", "20"))
    assert (await read_on(gateway, end))[0] == ["20"]


async def test_a_message_has_all_its_fields(client: Client, gateway: HttpClient) -> None:
    await client.create_space("s", ["a"])
    async with client.publisher() as publisher:
        await publisher.send("a", b"text", timestamp=0)
        await publisher.send("a", b"\xff", key=b"k", headers=[("h", "1"), ("h", b"\xff")], timestamp=1)
    document = await ask(gateway, filter="a", since="earliest")
    assert document["messages"] == [
        {
            "topic": "a", "key": None, "payload": "text", "stream": "s.0.0", "offset": 0, "previous": None,
            "timestamp": "1970-01-01T00:00:00.000000Z", "headers": [], "epoch": None,
        },
        {
            "topic": "a", "key": "k", "payload_base64": "/w==", "stream": "s.0.0", "offset": 1, "previous": 0,
            "timestamp": "1970-01-01T00:00:00.000001Z", "headers": [["h", "1"], ["h", {"base64": "/w=="}]],
            "epoch": None,
        },
    ]  # fmt: skip


async def test_latest_names_the_end_and_a_time_what_was_appended_after_it(
    client: Client, gateway: HttpClient
) -> None:
    await client.create_space("s", ["a/#"], streams=2)
    await publish(client, ("a/1", "old"), ("a/2", "old"))
    latest = await ask(gateway, filter="#", since="latest")
    assert latest["messages"] == []
    async with client.history("#") as history:
        times = [message.append_timestamp async for batch in history for message in batch.messages]
    await publish(client, ("a/1", "new"))
    assert (await read_on(gateway, latest["next"]))[0] == ["new"]
    after = await ask(gateway, filter="#", since=max(times).isoformat())
    assert payloads(after) == ["new"]


async def test_a_poll_that_waits_is_answered_by_what_its_filter_matches(
    client: Client, gateway: HttpClient
) -> None:
    await client.create_space("s", ["a/#"], streams=2)
    latest = (await ask(gateway, filter="a/+/x", since="latest"))["next"]
    poll = asyncio.ensure_future(ask(gateway, filter="a/+/x", since=latest, wait=30))
    other = asyncio.ensure_future(ask(gateway, filter="a/2/y", since=latest, wait=30))
    for n in range(5):
        await publish(client, ("a/1/y", f"no {n}"))
    await publish(client, ("a/1/x", "yes"))
    document = await poll
    assert payloads(document) == ["yes"]
    assert not other.done()
    await publish(client, ("a/2/y", "mine"))
    assert payloads(await other) == ["mine"]


async def test_a_poll_without_news_ends_with_a_cursor_behind_what_was_passed_over(
    client: Client, gateway: HttpClient
) -> None:
    await client.create_space("s", ["a/#"])
    latest = (await ask(gateway, filter="a/x", since="latest"))["next"]
    poll = asyncio.ensure_future(ask(gateway, filter="a/x", since=latest, wait=2))
    while not COUNTS.open["/v1/messages"]:
        await gateway.get("/healthz")
    await publish(client, ("a/y", "no"))
    assert not poll.done()
    document = await poll
    assert document["messages"] == [] and document["next"] != latest
    assert (await read_on(gateway, document["next"], "#"))[0] == []
    assert (await read_on(gateway, latest, "#"))[0] == ["no"]


async def test_many_polls_share_one_reading_of_the_log(client: Client, gateway: HttpClient) -> None:
    await client.create_space("s", ["a/#"], streams=2)
    latest = (await ask(gateway, filter="a/#", since="latest"))["next"]
    polls = [asyncio.ensure_future(ask(gateway, filter="a/#", since=latest, wait=30)) for _ in range(50)]
    polls += [asyncio.ensure_future(ask(gateway, filter=f"a/{n}", since=latest, wait=30)) for n in range(50)]
    await asyncio.sleep(0)
    for n in range(50):
        await publish(client, (f"a/{n}", str(n)))
    found = await asyncio.gather(*polls)
    assert all(payloads(one) for one in found[:50])
    assert [payloads(one) for one in found[50:]] == [[str(n)] for n in range(50)]


async def test_a_cursor_holds_at_another_gateway_and_after_a_restart_of_all(
    client: Client, start_gateway: Start
) -> None:
    await client.create_space("s", ["a"])
    await publish(client, ("a", "1"), ("a", "2"))
    async with running(client) as one, running(client) as other:
        first = await ask(one, filter="a", since="earliest", limit=1)
        assert payloads(await ask(other, filter="a", since=first["next"])) == ["2"]
    newer = await start_gateway()
    assert payloads(await ask(newer, filter="a", since=first["next"])) == ["2"]


@pytest.mark.parametrize("wait", [0, 0.5])
async def test_a_cursor_holds_over_generations(client: Client, gateway: HttpClient, wait: float) -> None:
    await client.create_space("s", ["a/#"], streams=3)
    topics = [f"a/{n}" for n in range(6)]
    sent = []
    since = (await ask(gateway, filter="#", since="latest"))["next"]
    found: list[str] = []
    for streams in (3, 2, 5):
        await client.spaces.generations.alter("s", streams=streams, rotate=streams == 3)
        for n in range(4):
            for topic in topics:
                sent.append(f"{topic} {streams} {n}")
                await publish(client, (topic, sent[-1]))
        some, since = await read_on(gateway, since, limit=7, wait=wait)
        found += some
    for topic in topics:
        assert [one for one in found if one.startswith(f"{topic} ")] == [
            one for one in sent if one.startswith(f"{topic} ")
        ]


async def test_new_spaces_are_found_by_who_waits(client: Client, gateway: HttpClient) -> None:
    await client.create_space("s", ["a/#"])
    since = (await ask(gateway, filter="#", since="latest"))["next"]
    poll = asyncio.ensure_future(ask(gateway, filter="#", since=since, wait=30))
    await client.create_space("t", ["b/#"], streams=2)
    await publish(client, ("b/1", "of a new space"))
    assert payloads(await poll) == ["of a new space"]


async def test_a_space_of_this_moment_is_known_and_unknown_ones_cost_little(
    client: Client, gateway: HttpClient, start_gateway: Start
) -> None:
    other = await start_gateway()
    looks = client.spaces.look
    counted = 0

    async def counting() -> Any:
        nonlocal counted
        counted += 1
        return await looks()

    client.spaces.look = counting  # type: ignore[method-assign]
    began = asyncio.get_running_loop().time()
    answers = await asyncio.gather(
        *(gateway.get("/v1/messages", filter="a/#", since="latest", wait=1) for _ in range(200))
    )
    assert {answer.status for answer in answers} == {404}
    assert counted <= 1 + (asyncio.get_running_loop().time() - began) / 0.05
    assert (await other.get("/v1/messages", filter="a/#", since="latest", wait=1)).status == 404
    await client.create_space("s", ["a/#"])
    for http in (other, gateway):
        assert (await ask(http, filter="a/#", since="latest", wait=0.1))["messages"] == []


async def test_what_retention_took_is_said_with_the_oldest_cursor_left(
    client: Client, gateway: HttpClient
) -> None:
    await client.create_space("s", ["a/#"], streams=2)
    since = (await ask(gateway, filter="#", since="earliest"))["next"]
    for n in range(10):
        await publish(client, (f"a/{n}", str(n)))
    whole = await ask(gateway, filter="#", since=since)
    left = []
    for stream in (StreamId("s", 0, 0), StreamId("s", 0, 1)):
        mine = [message["payload"] for message in whole["messages"] if message["stream"] == str(stream)]
        await trim(client.redis, Trim(stream, Retention(messages=2), len(mine)))
        left += mine[-2:]
    for point in (since, "2020-01-01T00:00:00Z"):
        for wait in (0, 1):
            answer = await gateway.get("/v1/messages", filter="#", since=point, wait=wait)
            assert (answer.status, answer.headers["content-type"]) == (410, "application/problem+json")
            problem = answer.json()
            assert problem["type"].endswith("/history-truncated")
            assert "no longer has" in problem["detail"]
            rest, _ = await read_on(gateway, problem["oldest"])
            assert sorted(rest) == sorted(left)


async def test_a_generation_that_was_read_to_its_end_may_go_and_one_that_was_not_is_told(
    client: Client, gateway: HttpClient
) -> None:
    await client.create_space("s", ["a/#"], streams=2)
    await publish(client, ("a/1", "1"), ("a/2", "2"))
    part = (await ask(gateway, filter="#", since="earliest", limit=1))["next"]
    _, end = await read_on(gateway, part)
    await client.spaces.generations.alter("s", streams=3)
    _, ended = await read_on(gateway, end)
    polling = asyncio.ensure_future(ask(gateway, filter="#", since=end, wait=3))
    await publish(client, ("a/1", "3"))
    assert payloads(await polling) == ["3"]
    await client.spaces.generations.drop("s", 0)
    for cursor in (ended, end):  # `end` had all, and did not know that nothing more would come
        assert (await read_on(gateway, cursor))[0] == ["3"]
    answer = await gateway.get("/v1/messages", filter="#", since=part)
    assert answer.status == 410
    assert (await read_on(gateway, answer.json()["oldest"]))[0] == ["3"]
    await client.spaces.generations.alter("s", streams=1)
    await client.spaces.generations.drop("s", 1)
    answer = await gateway.get("/v1/messages", filter="#", since=end)
    assert answer.status == 410  # "3" went with the next generation
    assert (await read_on(gateway, answer.json()["oldest"]))[0] == []
    assert (await gateway.get("/v1/messages", filter="#", since=ended)).status == 410


async def test_a_cursor_that_had_all_holds_over_one_dropped_generation_of_any_size(
    client: Client, gateway: HttpClient
) -> None:
    await client.create_space("s", ["a/#"], streams=3)
    await publish(client, *((f"a/{n}", str(n)) for n in range(9)))
    _, end = await read_on(gateway, "earliest")
    for number, streams in enumerate((2, 5, 1, 3)):
        part = (await ask(gateway, filter="#", since="earliest", limit=1))["next"]
        await client.spaces.generations.alter("s", streams=streams)
        await client.spaces.generations.drop("s", number)
        assert (await gateway.get("/v1/messages", filter="#", since=part)).status == 410
        await publish(client, ("a/1", f"{number}"), ("a/2", f"{number}"))
        found, end = await read_on(gateway, end)
        assert found == [f"{number}"] * 2


async def test_a_space_that_is_deleted_is_told(client: Client, gateway: HttpClient) -> None:
    await client.create_space("s", ["a/#"])
    await client.create_space("t", ["b/#"])
    await publish(client, ("a/1", "1"), ("b/1", "2"))
    since = (await ask(gateway, filter="#", since="latest"))["next"]
    await client.spaces.delete("s")
    answer = await gateway.get("/v1/messages", filter="#", since=since)
    assert answer.status == 410
    assert (await read_on(gateway, answer.json()["oldest"]))[0] == []
    assert (await gateway.get("/v1/messages", filter="a/#", since=since)).status == 404


async def test_a_cursor_of_one_filter_is_a_point_for_another(client: Client, gateway: HttpClient) -> None:
    await client.create_space("s", ["a/#"])
    await client.create_space("t", ["b/#"])
    await publish(client, ("a/1", "1"), ("b/1", "2"))
    since = (await ask(gateway, filter="#", since="latest"))["next"]
    await publish(client, ("a/1", "3"), ("b/1", "4"))
    some, since = await read_on(gateway, since, "a/#")
    assert some == ["3"]
    assert (await read_on(gateway, since, "#"))[0] == ["4"]


@pytest.mark.parametrize("form", ["application/x-ndjson", "application/vnd.apache.arrow.stream"])
async def test_lines_and_arrow_have_the_cursor_in_a_header(
    client: Client, gateway: HttpClient, form: str
) -> None:
    await client.create_space("s", ["a"])
    await publish(client, *(("a", str(n)) for n in range(5)))
    answer = await gateway.get("/v1/messages", {"accept": form}, filter="a", since="earliest", limit=3)
    assert answer.headers["content-type"] == form
    if form == "application/x-ndjson":
        found = [json.loads(line)["payload"] for line in answer.body.splitlines()]
    else:
        table = pa.ipc.open_stream(answer.body).read_all()
        assert table.schema.metadata[b"next"].decode() == answer.headers["streamlease-next"]
        found = [payload.decode() for payload in table.column("payload").to_pylist()]
    assert found == ["0", "1", "2"]
    assert (await read_on(gateway, answer.headers["streamlease-next"]))[0] == ["3", "4"]
    empty = await gateway.get("/v1/messages", {"accept": form}, filter="a", since="latest")
    assert (empty.status, len(empty.headers["streamlease-next"]) > 0) == (200, True)


async def test_typed_columns_are_shown(client: Client, gateway: HttpClient) -> None:
    await client.create_space(
        "s", ["a"], schema=pa.schema([("n", pa.int64()), ("t", pa.timestamp("us", "UTC"))])
    )
    async with client.publisher() as publisher:
        await publisher.send("a", {"n": 1, "t": datetime(2026, 1, 1, tzinfo=UTC)})
    (message,) = (await ask(gateway, filter="a", since="earliest"))["messages"]
    assert message["values"] == {"n": 1, "t": "2026-01-01T00:00:00+00:00"}
    assert "payload" not in message


async def test_a_client_that_leaves_lets_its_poll_go(client: Client) -> None:
    await client.create_space("s", ["a"])
    async with running(client, limits=GatewayLimits(open_polls=1)) as http:
        latest = (await ask(http, filter="a"))["next"]
        async with http.streaming("/v1/events", filter="a"):
            refused = await http.get("/v1/messages", filter="a", since=latest, wait=60)
            assert (refused.status, refused.json()["type"]) == (429, "urn:streamlease:problem/too-much")
        for _ in range(2):  # the second one follows a poll that was given up
            async with asyncio.timeout(20):
                while (await http.get("/v1/messages", filter="a", since=latest, wait=0.1)).status == 429:
                    pass
            given_up = asyncio.ensure_future(ask(http, filter="a", since=latest, wait=60))
            await asyncio.sleep(0)
            given_up.cancel()
