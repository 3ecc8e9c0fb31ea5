"""Publishing over HTTP, in every form of body; bad ones are refused whole, with the value and the remedy."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pyarrow as pa
import pytest

import streamlease.http
from streamlease.streams.entries.delivered import Message
from tests.gateway.conftest import Client
from tests.gateway.http_client import HttpClient

NDJSON = {"content-type": "application/x-ndjson"}
ARROW = {"content-type": "application/vnd.apache.arrow.stream"}


async def everything(client: Client) -> list[Message]:
    async with client.history("#") as history:
        return [message async for batch in history for message in batch.messages]


def arrow(table: pa.Table | pa.RecordBatch, codec: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write(table)
    return sink.getvalue().to_pybytes()


@pytest.fixture(autouse=True)
async def space(client: Client) -> None:
    await client.create_space("s", ["a/#", "/lead", "ü"], streams=3, shard_by="key")


async def test_a_raw_body_is_one_payload(client: Client, gateway: HttpClient) -> None:
    answer = await gateway.post("/v1/topics/a/b%2Fc", b"\x00\xff", {"streamlease-key": "k"})
    assert answer.status == 201, answer.body
    where = answer.json()
    (message,) = await everything(client)
    assert (message.topic, message.payload, message.key) == ("a/b/c", b"\x00\xff", b"k")
    assert (message.stream, message.offset) == (where["stream"], where["offset"])
    assert where["timestamp"] == message.timestamp.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@pytest.mark.parametrize("path", ["a/1", "%2Flead", "/lead", "%C3%BC"])
async def test_topics_in_urls(client: Client, gateway: HttpClient, path: str) -> None:
    assert (await gateway.post(f"/v1/topics/{path}")).status == 201
    assert [message.payload for message in await everything(client)] == [b""]


async def test_lines_are_messages(client: Client, gateway: HttpClient) -> None:
    lines: list[dict[str, Any]] = [
        {"payload": "1"},
        {"payload": "2", "key": "k"},
        {"payload_base64": "/w==", "key_base64": "/g==", "headers": {"h": "v"}, "timestamp": 5},
        {
            "payload": "4",
            "headers": [["h", "1"], ["h", {"base64": "/w=="}]],
            "timestamp": "1970-01-01T01:00+01:00",
        },
    ]
    body = "\n\r\n".join(map(json.dumps, lines)) + "\n"
    answer = await gateway.post("/v1/topics/a/1", body, NDJSON)
    assert answer.status == 201, answer.body
    found = {message.payload: message for message in await everything(client)}
    assert answer.json()["messages"] == 4
    last = found[b"4"]
    assert answer.json()["last"] == {
        "stream": last.stream, "offset": last.offset, "timestamp": "1970-01-01T00:00:00.000000Z",
    }  # fmt: skip
    assert found[b"\xff"][1] == b"\xfe" and found[b"\xff"].headers == (("h", b"v"),)
    assert found[b"\xff"].timestamp_us == 5
    assert found[b"4"].headers == (("h", b"1"), ("h", b"\xff"))
    assert found[b"2"].key == b"k"


async def test_arrow_rows_are_messages(client: Client, gateway: HttpClient) -> None:
    table = pa.table(
        {"payload": [b"1", b"2"], "key": ["k", None], "timestamp": pa.array([7, None], pa.timestamp("us"))}
    )
    answer = await gateway.post("/v1/topics/a/1", arrow(table), ARROW)
    assert (answer.status, answer.json()["messages"]) == (201, 2)
    found = {message.payload: message for message in await everything(client)}
    assert (found[b"1"].key, found[b"1"].timestamp_us) == (b"k", 7)
    assert found[b"2"].timestamp_us > 7


async def test_typed_rows(client: Client, gateway: HttpClient) -> None:
    await client.create_space("t", ["t"], schema=pa.schema([("n", pa.int64())]))
    assert (await gateway.post("/v1/topics/t", '{"payload":{"n":1}}', NDJSON)).status == 201
    assert (await gateway.post("/v1/topics/t", arrow(pa.table({"n": [2]})), ARROW)).status == 201
    for body, headers in (
        (b"x", {}),
        ('{"payload":{"n":"x"}}', NDJSON),
        (arrow(pa.table({"m": [2]})), ARROW),
    ):
        answer = await gateway.post("/v1/topics/t", body, headers)
        assert (answer.status, answer.json()["type"]) == (422, "urn:streamlease:problem/schema-mismatch")
    assert [message.values for message in await everything(client)] == [{"n": 1}, {"n": 2}]


EVENT = {
    "specversion": "1.0",
    "id": "1",
    "source": "/s",
    "type": "t",
    "time": "2026-01-01T00:00:00Z",
    "partitionkey": "k",
}


async def test_cloud_events(client: Client, gateway: HttpClient) -> None:
    one = {**EVENT, "datacontenttype": "application/json", "data": {"n": 1}, "extra": 5}
    kind = {"content-type": "application/cloudevents+json; charset=utf-8"}
    assert (await gateway.post("/v1/topics/a/1", json.dumps(one), kind)).status == 201
    batch = [{**EVENT, "id": str(n), "data_base64": "/w=="} for n in (2, 3)]
    kind = {"content-type": "application/cloudevents-batch+json"}
    assert (await gateway.post("/v1/topics/a/1", json.dumps(batch), kind)).json()["messages"] == 2
    headers = {f"ce-{name}": value for name, value in {**EVENT, "id": "4%20%C3%BC"}.items()}
    headers["content-type"] = "text/plain"
    assert (await gateway.post("/v1/topics/a/1", "four", headers)).status == 201
    found = {dict(message.headers)["ce-id"]: message for message in await everything(client)}
    assert found[b"1"].payload == b'{"n":1}' and found[b"2"].payload == b"\xff"
    assert found["4 ü".encode()].payload == b"four"
    assert {message.key for message in found.values()} == {b"k"}
    assert {message.timestamp.year for message in found.values()} == {2026}
    attributes = dict(found[b"1"].headers)
    assert attributes[b"ce-extra".decode()] == b"5"
    assert attributes["content-type"] == b"application/json"


def line(**fields: Any) -> tuple[str, dict[str, str]]:
    return json.dumps(fields), NDJSON


def event(**fields: Any) -> tuple[str, dict[str, str]]:
    kept = {name: value for name, value in {**EVENT, **fields}.items() if value is not None}
    return json.dumps(kept), {"content-type": "application/cloudevents+json"}


GOOD = '{"payload":"good"}\n'
COMPRESSED = arrow(pa.table({"payload": [b"x" * 1000] * 100}), "zstd")
BAD: list[tuple[Any, dict[str, str], str]] = [
    ("", NDJSON, "no lines"),
    (GOOD + "{", NDJSON, "line 2 is no JSON"),
    (GOOD + '{"payload":"a"},{"payload":"b"}', NDJSON, "line 2 is no JSON"),
    (GOOD + '"text"', NDJSON, "line 2: it is 'text'"),
    (GOOD + '{"payload":1}', NDJSON, "line 2: payload"),
    (GOOD + '{"payload":"\\ud800"}', NDJSON, "line 2 is no JSON"),
    (GOOD.encode() + b'{"payload":"\xff"}', NDJSON, "line 2 is no JSON"),
    (*line(), "give either payload or payload_base64"),
    (*line(payload="a", payload_base64="YQ=="), "give either payload"),
    (*line(payload_base64="?"), "no base64"),
    (*line(payload="a", key=5), "key is 5"),
    (*line(payload="a", key="a", key_base64="YQ=="), "two keys"),
    (*line(payload="a", colour="red"), "colour"),
    (*line(payload="a", timestamp="yesterday"), "'yesterday'"),
    (*line(payload="a", timestamp="2026-01-01"), "with a zone"),
    (*line(payload="a", timestamp=10**30), "timestamp"),
    (*line(payload="a", timestamp=10**18), "years 1 to 9999"),
    (*line(payload="a", headers={"a": 1}), "headers"),
    ("\n".join([GOOD.strip()] * 65_537), NDJSON, "at most 65536"),
    (b"", ARROW, "no Arrow stream"),
    (b"\xff\xff\xff\xff\x10\x00\x00\x00" + b"\xff" * 64, ARROW, "no Arrow stream"),
    (arrow(pa.table({"payload": [b"1"]}))[:-40], ARROW, "Arrow stream"),
    (COMPRESSED, ARROW, "without compression"),
    (arrow(pa.table({"payload": pa.array([], pa.binary())})), ARROW, "no rows"),
    (arrow(pa.table({"payload": [b"1"], "topic": ["a"]})), ARROW, "column topic"),
    (arrow(pa.table({"payload": [5]})), ARROW, "payload"),
    (arrow(pa.table({"payload": [b"1"], "timestamp": ["x"]})), ARROW, "timestamp"),
    (*event(specversion="0.3"), "specversion"),
    (*event(id=None), "id"),
    (*event(time="now"), "'now'"),
    (*event(data="a", data_base64="YQ=="), "give one of them"),
    (*event(Bad="x"), "'Bad'"),
    (*event(nested={"a": 1}), "nested"),
    ("[]", {"content-type": "application/cloudevents-batch+json"}, "at least one"),
    ("x", {"ce-specversion": "1.0"}, "id"),
    ("x", {"streamlease-key": ""}, "key has 0 bytes"),
    (GOOD, {**NDJSON, "streamlease-key": "k"}, "Streamlease-Key is for one message"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "headers", "told"), BAD)
async def test_a_bad_body_is_refused_whole(
    client: Client, gateway: HttpClient, body: bytes | str, headers: dict[str, str], told: str
) -> None:
    answer = await gateway.post("/v1/topics/a/1", body, headers)
    assert answer.status in (400, 413, 422), answer.body
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == answer.status and told in problem["detail"], problem
    assert "\n" not in problem["detail"]
    assert await everything(client) == []


@pytest.mark.parametrize(
    ("path", "status", "name"),
    [
        ("/v1/topics/", 400, "invalid-topic"),
        ("/v1/topics/a/%23", 400, "invalid-topic"),
        ("/v1/topics/a/%00", 400, "invalid-topic"),
        ("/v1/topics/a/%FF", 400, "invalid-input"),
        ("/v1/topics/" + "a" * 65_530, 404, "unknown-space"),
        ("/v1/topics/nowhere", 404, "unknown-space"),
        ("/v1/topic/a", 404, "not-found"),
    ],
)
async def test_a_bad_address_is_told(gateway: HttpClient, path: str, status: int, name: str) -> None:
    answer = await gateway.post(path, "x")
    assert (answer.status, answer.json()["type"]) == (status, f"urn:streamlease:problem/{name}")


async def test_a_long_body_is_refused_before_it_is_read(client: Client, gateway: HttpClient) -> None:
    answer = await gateway.request("POST", "/v1/topics/a/1", b"", {"content-length": str(1 << 40)})
    assert answer.status == 413
    chunk = b"%x\r\n%b\r\n" % (1 << 20, b"x" * (1 << 20))
    answer = await gateway.request("POST", "/v1/topics/a/1", chunk * 17, {"transfer-encoding": "chunked"})
    assert (answer.status, answer.json()["type"]) == (413, "urn:streamlease:problem/body-too-large")
    assert await everything(client) == []


async def test_a_defect_behind_the_append_is_not_told_as_nothing_done_and_not_repeated(
    client: Client, gateway: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever repeats a 503 would publish the message twice."""

    def defect(*_: object) -> bytes:
        raise LookupError("a defect of the gateway")

    monkeypatch.setattr("streamlease.gateway.publishing._shown_place", defect)
    answer = await gateway.post("/v1/topics/a/1", "x")
    assert (answer.status, answer.json()["type"]) == (500, "urn:streamlease:problem/task-failed")
    assert "retry-after" not in answer.headers and "may have been done" in answer.json()["detail"]
    assert [message.payload for message in await everything(client)] == [b"x"]
    async with streamlease.http.connect(f"http://127.0.0.1:{gateway.port}") as service:
        for repeat in (False, True):
            with pytest.raises(streamlease.http.GatewayDefect, match="may have been done"):
                await service.publish("a/1", "y", repeat=repeat)
    assert [message.payload for message in await everything(client)].count(b"y") == 2


async def test_many_at_once_keep_their_order(client: Client, gateway: HttpClient) -> None:
    async def producer(number: int) -> None:
        for n in range(20):
            answer = await gateway.post(f"/v1/topics/a/{number}", str(n))
            assert answer.status == 201

    await asyncio.gather(*map(producer, range(10)))
    found = await everything(client)
    for number in range(10):
        assert [message.payload for message in found if message.topic == f"a/{number}"] == [
            str(n).encode() for n in range(20)
        ]
