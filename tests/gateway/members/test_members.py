"""Members of groups over HTTP: join, fetch, commit, fail, leave."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import streamlease
from streamlease.gateway.core.rates import GatewayLimits
from streamlease.protocol.group_options import GroupOptions
from streamlease.streams.tasks import stop
from tests.gateway.conftest import Start
from tests.gateway.http_client import HttpClient
from tests.gateway.members.member_client import Member, ends

Client = streamlease.Client


@pytest.fixture
async def http(client: Client, start_gateway: Start) -> HttpClient:
    """A gateway, of a Redis with a space."""
    await client.create_space("s", ["a/#"], streams=4)
    gateway: HttpClient = await start_gateway()
    return gateway


async def publish(client: Client, count: int, topics: int = 20) -> None:
    async with client.publisher() as publisher:
        for number in range(count):
            await publisher.submit(f"a/{number % topics}", str(number).encode())


async def until(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (any condition)
            await asyncio.sleep(0.02)


def named(answer: Any, status: int, name: str) -> str:
    """The detail of a problem, which must be that one."""
    assert answer.status == status, answer
    found = answer.json()
    assert found["type"].rpartition("/")[2] == name, found
    return str(found["detail"])


async def test_a_member_gets_all_and_commits(client: Client, http: HttpClient) -> None:
    await publish(client, 100)
    member = await Member([http], "g").join("a/#")
    payloads: list[str] = []
    while len(payloads) < 100:
        page = await member.fetch(max=30)
        assert len(page["messages"]) <= 30
        payloads += [one["payload"] for one in page["messages"]]
        await member.done(page)
    assert sorted(map(int, payloads)) == [*range(100)]
    assert len(set(member.got)) == 100
    assert (await member.fetch(wait=0))["messages"] == []
    await member.leave()
    await member.leave()  # again, by a client that got no answer


async def test_a_fetch_moves_nothing_until_a_commit_or_a_cursor_says_so(
    client: Client, http: HttpClient
) -> None:
    await publish(client, 30, topics=1)
    member = await Member([http], "g").join("a/#")
    first = await member.fetch(max=10)
    again = await member.fetch(max=10)
    assert again["messages"] == first["messages"]
    further = await member.fetch(max=10, since=first["next"])
    assert [one["offset"] for one in further["messages"]] == [*range(10, 20)]
    stream = first["messages"][0]["stream"]
    assert (await member.commit({stream: 5})).status == 200
    rest = await member.fetch(max=100)
    assert [one["offset"] for one in rest["messages"]] == [*range(5, 30)]
    assert [one["previous"] for one in rest["messages"]] == [*range(4, 29)]
    nothing = await member.fetch(since=rest["next"], wait=0)
    assert nothing["messages"] == []
    assert (await member.commit({stream: 30})).json() == {"committed": {stream: 30}}
    assert (await member.commit({stream: 30})).json() == {"committed": {stream: 30}}  # it may be repeated
    assert (await member.commit({stream: 7})).status == 200


async def test_a_fetch_waits_and_the_next_one_ends_it(client: Client, http: HttpClient) -> None:
    member = await Member([http], "g").join("a/#")
    waiting = asyncio.ensure_future(member.fetch(wait=30))
    _, pending = await asyncio.wait({waiting}, timeout=1)
    assert pending
    newer = asyncio.ensure_future(member.fetch(wait=30))
    assert (await asyncio.wait_for(waiting, 10))["messages"] == []
    await publish(client, 1)
    assert len((await asyncio.wait_for(newer, 10))["messages"]) == 1


async def test_lines_and_arrow(client: Client, http: HttpClient) -> None:
    await publish(client, 20)
    member = await Member([http], "g").join("a/#")
    while len((await member.fetch())["messages"]) < 20:
        pass
    path = f"{member.base}/{member.id}/messages"
    lines = await http.get(path, {"accept": "application/x-ndjson"})
    assert len([json.loads(line) for line in lines.body.splitlines()]) == 20
    arrow = await http.get(path, {"accept": "application/vnd.apache.arrow.stream"})
    table = pa.ipc.open_stream(io.BytesIO(arrow.body)).read_all()
    assert table.num_rows == 20
    nothing = await http.get(path, since=arrow.headers["streamlease-next"])
    assert nothing.json()["messages"] == []
    named(await http.get(path, {"accept": "text/html"}), 406, "not-acceptable")


async def test_what_is_not_the_members_is_not_committed(client: Client, http: HttpClient) -> None:
    await publish(client, 20, topics=1)
    member = await Member([http], "g").join("a/#")
    page = await member.fetch(max=10)
    (stream,) = ends(page)
    other = next(f"s.0.{shard}" for shard in range(4) if f"s.0.{shard}" != stream)
    detail = named(await member.commit({stream: 11}), 409, "not-handed-out")
    assert stream in detail
    assert "10" in detail
    named(await member.commit({stream: 5, other: 1}), 409, "not-handed-out")
    assert (await member.fetch(max=10))["messages"] == page["messages"]  # nothing half done
    named(await member.commit({"s.7.0": 1}), 409, "not-held")
    named(await member.fail(stream, 15), 409, "not-handed-out")
    named(await member.fail("s.7.0", 1), 409, "not-held")


async def test_a_stream_goes_over_once_it_is_committed_and_nothing_comes_twice(
    client: Client, http: HttpClient
) -> None:
    await publish(client, 200)
    member = await Member([http], "g").join("a/#")
    pages = [await member.fetch(max=60)]
    beside: list[tuple[str, int]] = []

    async def consume(batches: Any) -> None:
        async for batch in batches:
            beside.extend((one.stream, one.offset) for one in batch.messages)
            await batch.commit()

    async with client.subscribe("$shared/g/a/#") as batches:
        consuming = asyncio.ensure_future(consume(batches))
        await until(lambda: len(batches.streams) >= 1)  # of which nothing was handed out
        for page in pages:
            await member.done(page)
        while len(beside) + len(member.got) < 200:
            await member.done(await member.fetch(wait=1, max=20))
        assert len(batches.streams) == 2
        assert len({*beside, *member.got}) == 200
        await member.leave()
        await until(lambda: len(batches.streams) == 4)
        await stop([consuming])


async def test_a_failure_follows_the_policy_of_the_group(client: Client, http: HttpClient) -> None:
    options = GroupOptions(max_failures=2, retry_delay_ms=100)
    async with client.subscribe("$shared/g/a/#", start="earliest", options=options):
        pass
    await publish(client, 3, topics=1)
    member = await Member([http], "g").join("a/#")
    page = await member.fetch()
    (stream,) = ends(page)
    assert (await member.fail(stream, 1)).json() == {"verdict": "retry"}
    named(await member.fail(stream, 1), 409, "not-handed-out")  # one failure is not told twice
    named(await member.commit({stream: 3}), 409, "not-handed-out")
    again = await member.fetch(since=page["next"])
    assert [one["offset"] for one in again["messages"]] == [1, 2]
    assert (await member.fail(stream, 1, "no price")).json() == {"verdict": "passed"}
    last = await member.fetch()
    assert [one["offset"] for one in last["messages"]] == [2]
    await member.done(last)


async def test_a_static_name_takes_over(client: Client, http: HttpClient) -> None:
    await publish(client, 20)
    former = await Member([http], "g").join("a/#", name="worker")
    while len((await former.fetch())["messages"]) < 20:
        pass
    newcomer = await Member([http], "g").join("a/#", name="worker")
    while len((await newcomer.fetch())["messages"]) < 20:
        pass
    assert "worker" in named(await http.get(f"{former.base}/{former.id}/messages"), 409, "fenced")
    named(await http.get(f"{former.base}/{former.id}/messages"), 404, "unknown-member")
    await newcomer.done(await newcomer.fetch())


async def test_a_silent_member_leaves(client: Client, http: HttpClient) -> None:
    await publish(client, 20)
    member = await Member([http], "g").join("a/#", session_timeout=2)
    assert (await member.fetch())["messages"]
    async with client.subscribe("$shared/g/a/#") as batches:
        await until(lambda: len(batches.streams) == 4)
    named(await http.get(f"{member.base}/{member.id}/messages"), 404, "unknown-member")


async def test_a_member_that_waits_is_not_silent(client: Client, http: HttpClient) -> None:
    member = await Member([http], "g").join("a/#", session_timeout=2)
    assert (await member.fetch(wait=4))["messages"] == []
    assert (await member.fetch(wait=0))["messages"] == []


async def test_what_is_not_committed_is_bounded(client: Client, start_gateway: Start) -> None:
    await client.create_space("s", ["a/#"], streams=1)
    async with client.publisher() as publisher:
        for _ in range(40):
            await publisher.send("a/1", b"x" * 1000)
    gateway = await start_gateway(limits=GatewayLimits(member_bytes=10_000))
    member = await Member([gateway], "g").join("a/#")
    page = await member.fetch(max=5)
    got = 5
    while True:
        answer = await gateway.get(f"{member.base}/{member.id}/messages", max=5, since=page["next"], wait=5)
        if answer.status != 200:
            break
        page = answer.json()
        got += len(page["messages"])
    named(answer, 409, "not-committed")
    assert 10 <= got < 20
    await member.done(page)
    assert (await member.fetch(since=page["next"], max=5))["messages"]


async def test_members_are_limited(client: Client, start_gateway: Start) -> None:
    await client.create_space("s", ["a/#"], streams=1)
    gateway = await start_gateway(limits=GatewayLimits(client_members=2))
    members = [await Member([gateway], "g").join("a/#") for _ in range(2)]
    body = json.dumps({"filter": "a/#"})
    refused = await gateway.post(members[0].base, body)
    assert "retry-after" in refused.headers
    named(refused, 429, "too-much")
    await members[0].leave()
    assert (await gateway.post(members[0].base, body)).status == 201


@pytest.fixture
async def secured(client: Client, start_gateway: Start, tmp_path: Path) -> AsyncIterator[HttpClient]:
    """A gateway with tokens."""
    await client.create_space("s", ["a/#"], streams=1)
    tokens = {
        "one": {"consume": ["a/#"], "groups": ["g"]},
        "two": {"consume": ["a/#"]},
        "narrow": {"consume": ["a/1"]},
    }
    listed = [
        {"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest(), **rights}
        for name, rights in tokens.items()
    ]
    file = tmp_path / "tokens"
    file.write_text(json.dumps({"tokens": listed}))
    yield await start_gateway(tokens=file)


async def test_rights(secured: HttpClient) -> None:
    def of(name: str) -> dict[str, str]:
        return {"authorization": f"Bearer {name}"}

    body = json.dumps({"filter": "a/#"})
    named(await secured.post("/v1/groups/g/members", body), 401, "not-authenticated")
    named(await secured.post("/v1/groups/h/members", body, of("one")), 403, "not-allowed")
    named(await secured.post("/v1/groups/g/members", body, of("narrow")), 403, "not-allowed")
    joined = await secured.post("/v1/groups/g/members", body, of("one"))
    path = f"/v1/groups/g/members/{joined.json()['member']}/messages"
    assert (await secured.get(path, of("one"))).status == 200
    named(await secured.get(path, of("two")), 404, "unknown-member")  # an id is its client's
    named(await secured.get(path.replace("/g/", "/h/"), of("two")), 404, "unknown-member")
    named(await secured.get(path), 401, "not-authenticated")


BAD_BODIES: list[tuple[str, bytes, str]] = [
    ("", b"", "no JSON"),
    ("", b"{", "no JSON"),
    ("", b"\xff", "no JSON"),
    ("", b"[]", "the body is []"),
    ("", b"{}", "filter"),
    ("", b'{"filter": 1}', "filter is 1"),
    ("", b'{"filter": ""}', "filter"),
    ("", b'{"filter": "a/#/b"}', "#"),
    ("", b'{"filter": "a/#", "start": "noon"}', "noon"),
    ("", b'{"filter": "a/#", "start": "2026-01-01T00:00:00"}', "zone"),
    ("", b'{"filter": "a/#", "start": -1}', "-1"),
    ("", b'{"filter": "a/#", "start": {"s": 1}}', "s"),
    ("", b'{"filter": "a/#", "start": true}', "start"),
    ("", b'{"filter": "a/#", "name": "no name"}', "no name"),
    ("", b'{"filter": "a/#", "session_timeout": 0}', "session_timeout"),
    ("", b'{"filter": "a/#", "session_timeout": "9"}', "session_timeout"),
    ("", b'{"filter": "a/#", "session_timeout": 1e9}', "session_timeout"),
    ("", b'{"filter": "a/#", "more": 1}', "more"),
    ("", json.dumps({"filter": "a/" + "x" * 5000}).encode(), "5002"),
    ("/M/commit", b"{}", "offsets"),
    ("/M/commit", b'{"offsets": {}}', "offsets"),
    ("/M/commit", b'{"offsets": {"s": 1}}', "s"),
    ("/M/commit", b'{"offsets": {"s.0.0": -1}}', "-1"),
    ("/M/commit", b'{"offsets": {"s.0.0": 1.5}}', "1.5"),
    ("/M/commit", b'{"offsets": {"s.0.0": true}}', "rue"),
    ("/M/commit", b'{"offsets": {"s.0.0": 1e400}}', "is inf"),
    ("/M/commit", b'{"offsets": [1]}', "offsets"),
    ("/M/fail", b'{"stream": "s.0.0"}', "offset"),
    ("/M/fail", b'{"stream": "x", "offset": 1}', "x"),
    ("/M/fail", b'{"stream": "s.0.0", "offset": "1"}', "offset"),
    ("/M/fail", b'{"stream": "s.0.0", "offset": 0, "error": 7}', "error"),
]


async def test_bad_bodies(client: Client, http: HttpClient) -> None:
    member = await Member([http], "g").join("a/#")
    for path, body, word in BAD_BODIES:
        answer = await http.post(f"{member.base}{path.replace('M', member.id)}", body)
        assert answer.status == 400, (body, answer)
        assert word in answer.json()["detail"], (body, answer)


async def test_bad_addresses_and_parameters(client: Client, http: HttpClient) -> None:
    member = await Member([http], "g").join("a/#")
    body = json.dumps({"filter": "a/#"})
    for group in ("", "%23", "a%2Fb", "%2B", "%00"):
        named(await http.post(f"/v1/groups/{group}/members", body), 400, "invalid-topic")
    named(await http.post("/v1/groups/%FF/members", body), 400, "invalid-input")
    named(await http.post("/v1/groups/g/members", json.dumps({"filter": "none"})), 404, "unknown-space")
    own = f"{member.base}/{member.id}"
    for changed in (own[:-1], own + "A", f"{member.base}/x", f"{member.base}/%C3%A4", f"{member.base}/%20"):
        named(await http.get(f"{changed}/messages"), 404, "unknown-member")
    for parameters in ({"max": 0}, {"max": "x"}, {"max": 10**9}, {"wait": -1}, {"wait": 61}, {"limit": 1}):
        named(await http.get(f"{own}/messages", **parameters), 400, "invalid-option")
    named(await http.get(f"{own}/messages", since="earliest"), 400, "invalid-cursor")
    (other,) = [(await http.get("/v1/messages", filter="a/#")).json()["next"]]
    named(await http.get(f"{own}/messages", since=other), 400, "invalid-cursor")
    named(await http.get(f"{own}/none"), 404, "not-found")
    named(await http.get("/v1/groups/g"), 404, "not-found")
    wrong = await http.get(f"{own}/commit")
    assert wrong.headers["allow"] == "POST"
    named(wrong, 405, "wrong-method")
    named(await http.request("PUT", own, b""), 405, "wrong-method")
