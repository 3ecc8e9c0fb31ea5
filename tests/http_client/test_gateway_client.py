"""The client of the gateway: what it publishes and reads, its errors, and its blocking twin."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from streamlease import http
from streamlease.http import blocking
from streamlease.http.core.event_parsing import EventParser
from streamlease.http.core.gateway_errors import error_of
from streamlease.http.core.publish_requests import PublishAttempts
from streamlease.http.core.webhook_signatures import signature
from streamlease.protocol.errors import (
    Indefinite,
    InvalidInput,
    InvalidOption,
    InvalidTopic,
    StoreUnavailable,
    StreamleaseError,
    UnknownSpace,
)
from tests.gateway.conftest import Client, Start
from tests.gateway.http_client import HttpClient
from tests.http_client.faulty_proxy import Faults, between


def url(gateway: HttpClient) -> str:
    return f"http://127.0.0.1:{gateway.port}"


async def test_what_is_published_is_read_as_it_was(client: Client, gateway: HttpClient) -> None:
    await client.create_space("s", ["a/#", "/b"], streams=2)
    at = datetime(2026, 2, 3, 4, 5, 6, 789000, tzinfo=UTC)
    async with http.connect(url(gateway)) as service:
        results = [
            await service.publish("a/1", b"\xff\x00", key=b"\xfe", headers=[("h", "1"), ("h", b"\xfd")]),
            await service.publish("a/1", "ä", key="ö", timestamp=at),
            await service.publish("/b", "raw", key="k"),
            await service.publish("a/ü b?#".replace("#", "x"), b"\xf0 raw"),
        ]
        many = await service.publish_many(
            "a/1", [http.MessageToPublish("1"), http.MessageToPublish("2", headers={"n": "v"})]
        )
        page = await service.since("#", "earliest")
    found = {(m.stream, m.offset): m for m in page.messages}
    first, second, third, fourth = (found[one.stream, one.offset] for one in results)
    assert (first.payload, first.key, first.headers) == (b"\xff\x00", b"\xfe", (("h", b"1"), ("h", b"\xfd")))
    assert (second.payload, second.key, second.timestamp) == ("ä".encode(), "ö".encode(), at)
    assert (third.topic, third.payload, third.key) == ("/b", b"raw", b"k")
    assert (fourth.topic, fourth.payload) == ("a/ü b?x", b"\xf0 raw")
    assert many.messages == 2 and found[many.stream, many.offset].payload == b"2"
    assert results[1].timestamp == at


async def test_values_of_a_space_with_a_schema(client: Client, gateway: HttpClient) -> None:
    import pyarrow as pa

    await client.create_space("s", ["a/#"], schema=pa.schema([("n", pa.int64())]))
    async with http.connect(url(gateway)) as service:
        await service.publish("a/1", {"n": 5})
        (message,) = (await service.since("a/#", "earliest")).messages
    assert (message.values, message.payload) == ({"n": 5}, None)


async def test_errors_are_typed_and_one_line(
    client: Client, gateway: HttpClient, start_gateway: Start, tmp_path: Path
) -> None:
    await client.create_space("s", ["a/#"])
    (tmp_path / "tokens").write_text(
        json.dumps(
            {"tokens": [{"name": "n", "sha256": hashlib.sha256(b"x").hexdigest(), "consume": ["a/1"]}]}
        )
    )
    guarded = await start_gateway(tokens=tmp_path / "tokens")
    async with (
        http.connect(url(gateway)) as service,
        http.connect(url(guarded)) as stranger,
        http.connect(url(guarded), token="x") as reader,
    ):
        for call, kind, told in [
            (service.publish("b/1", ""), UnknownSpace, "b/1"),
            (service.publish("a/+", ""), InvalidTopic, "a/+"),
            (service.publish("", ""), InvalidInput, "the topic is empty"),
            (service.publish_many("a/1", []), InvalidInput, "no messages"),
            (service.publish("a/1", "", timestamp=datetime(2026, 1, 1)), InvalidInput, "no zone"),
            (service.since("a/#", "nonsense"), InvalidInput, "is no cursor of this service"),
            (service.since("a/#", ""), InvalidInput, "since is empty"),
            (service.since("a/#", limit=0), InvalidOption, "limit is '0'"),
            (stranger.since("a/1"), http.GatewayRefused, "token"),
            (reader.since("a/1/2"), http.GatewayRefused, "a/1/2"),
            (reader.publish("a/1", ""), http.GatewayRefused, "a/1"),
        ]:
            with pytest.raises(kind) as caught:
                await call
            assert told in str(caught.value) and "\n" not in str(caught.value), caught.value
        async with reader.follow("a/#", "earliest") as pages:
            with pytest.raises(http.GatewayRefused) as refused:
                await anext(pages)
        assert (refused.value.status, refused.value.problem) == (403, "not-allowed")
    for address in ("127.0.0.1:8640", "ftp://x", ""):
        with pytest.raises(InvalidOption, match="is no address of a gateway"):
            http.connect(address)


async def test_a_gateway_that_is_not_there(unused_tcp_port: int) -> None:
    async with http.connect(f"http://127.0.0.1:{unused_tcp_port}") as service:
        with pytest.raises(http.GatewayUnavailable, match="is it running"):
            await service.since("a")
        with pytest.raises(http.GatewayUnavailable, match="is it running"):
            await service.publish("a", "", seconds=0.3)
        async with service.follow("a", patience=0.5) as pages:
            with pytest.raises(http.GatewayUnavailable):
                await anext(pages)


async def test_an_answer_that_never_comes_is_indefinite_or_repeated(
    client: Client, gateway: HttpClient
) -> None:
    await client.create_space("s", ["a/#"])
    async with (
        between(gateway.port, Faults(no_answer=1.0), seed=1) as proxy,
        http.connect(proxy.url) as service,
    ):
        with pytest.raises(Indefinite, match="it may have been done"):
            await service.publish("a/1", "once", repeat=False)
        again = asyncio.ensure_future(service.publish("a/1", "twice", idempotency_key="k"))
        await proxy.has_done("no_answer", 4)
        proxy.heal()
        result = await again
        assert await service.publish("a/1", "twice", idempotency_key="k") == result
        with pytest.raises(http.GatewayRefused) as reused:
            await service.publish("a/1", "other", idempotency_key="k")
        assert reused.value.problem == "key-reused"
        page = await service.since("a/#", "earliest")
    assert [message.payload for message in page.messages] == [b"once", b"twice"]


@pytest.mark.parametrize(
    ("keyed", "error", "again"),
    [
        (True, Indefinite("x"), True),
        (False, Indefinite("x"), False),
        (False, StoreUnavailable("x"), True),
        (True, InvalidTopic("x"), False),
        (False, http.GatewayRefused("x", 429, "too-much", 3.0), True),
    ],
)
def test_when_a_request_is_repeated(keyed: bool, error: StreamleaseError, again: bool) -> None:
    attempts = PublishAttempts(keyed, deadline=10.0, spread=0.5)
    if again:
        pause = attempts.after(error, 0.0)
        assert pause == (3.0 if getattr(error, "pause", None) else pytest.approx(0.05))
    else:
        with pytest.raises(type(error)):
            attempts.after(error, 0.0)
    with pytest.raises(type(error)):
        attempts.after(error, 10.0)


def test_what_was_in_doubt_once_stays_in_doubt_at_the_end() -> None:
    attempts = PublishAttempts(True, deadline=10.0, spread=0.5)
    attempts.after(Indefinite("doubt"), 0.0)
    with pytest.raises(Indefinite, match="doubt"):
        attempts.after(StoreUnavailable("down"), 10.0)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (502, b"<html>Bad gateway</html>", Indefinite),
        (504, b"", Indefinite),
        (503, b"later", http.GatewayRefused),
        (500, b'{"type":"urn:x/task-failed","detail":"a defect"}', http.GatewayDefect),
        (500, b"oops", http.GatewayRefused),
        (404, b"{}", http.GatewayRefused),
        (410, b'{"type":"urn:x/history-truncated","detail":"gone","oldest":"c"}', http.CursorTruncated),
        (503, b'{"type":"urn:x/store-unavailable","detail":"down"}', StoreUnavailable),
    ],
)
def test_answers_that_are_no_success(status: int, body: bytes, kind: type[StreamleaseError]) -> None:
    error = error_of(status, body, "2")
    assert type(error) is kind and "\n" not in str(error)
    assert error.retriable is (status in (502, 503, 504))


def test_events_come_in_any_pieces() -> None:
    text = (
        b"retry: 1\nafter: x\nid: 1\ndata: a\ndata: b\r\n\n: nothing\n\nevent: problem\ndata: {}\n\nid: 2\n\n"
    )
    whole = list(EventParser().feed(text))
    assert [(e.name, e.data, e.id, e.after) for e in whole] == [
        ("message", "a\nb", "1", "x"),
        ("problem", "{}", None, None),
        ("message", None, "2", None),
    ]
    parser = EventParser()
    assert [event for n in range(len(text)) for event in parser.feed(text[n : n + 1])] == whole


def test_the_blocking_twin(gateway_url: str) -> None:
    with blocking.connect(gateway_url) as service:
        begin = service.since("a/#")
        service.publish("a/1", "one", key="k")
        service.publish_many("a/1", [http.MessageToPublish("two")])
        with service.follow("a/#", begin.next) as pages:
            found = []
            for page in pages:
                found += [message.payload for message in page.messages]
                if len(found) == 2:
                    break
            assert found == [b"one", b"two"] and pages.cursor == page.next and pages.counts.taken == 2
        with pytest.raises(UnknownSpace):
            service.publish("b", "")
        with service.follow("a/#", "latest") as pages:
            ender = threading.Timer(0.2, pages.close)
            ender.start()
            assert list(pages) == []
            ender.join()
    with pytest.raises(InvalidInput, match="closed"):
        service.publish("a/1", "")


@pytest.mark.parametrize("missing", [(), ("httpx",)])
def test_it_is_imported_without_redis(missing: tuple[str, ...]) -> None:
    """Nor does it need httpx before it connects, and says what to install."""
    program = f"""
import sys
for name in ("redis", "rq", "hiredis", "pyarrow", *{missing!r}):
    sys.modules[name] = None
from streamlease import http
from streamlease.http import blocking
from streamlease.protocol.errors import Unsupported
try:
    http.connect("http://127.0.0.1:1")
    print("connected")
except Unsupported as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == (
        "the client of the gateway needs httpx: pip install 'streamlease[http]'\n"
        if missing
        else "connected\n"
    )


# ------------------------------------------------------------ callbacks


def callback(subscription: str, secret: str = "s") -> tuple[dict[str, str], bytes]:
    document = {"subscription": subscription, "messages": [], "previous": "c0", "next": "c"}
    body = json.dumps(document).encode()
    return {"Streamlease-Signature": signature(secret, body)}, body


def test_a_signature_is_the_hmac_of_the_raw_body() -> None:
    """As ``printf '{}' | openssl dgst -sha256 -hmac s`` has it."""
    assert signature("s", b"{}") == (
        "sha256=143ca8d517ba1b181025d732b1cf275d90104fca57bb02a565542978aa18c4b6"
    )


async def test_callbacks_that_are_not_ours_are_refused(unused_tcp_port: int) -> None:
    async with (
        http.connect(f"http://127.0.0.1:{unused_tcp_port}") as service,
        service.follow("a", "earliest", webhook=http.Webhook("http://x/", "s")) as pages,
    ):
        for headers, body, status in [
            ({}, b"{}", 401),
            (*callback("x", secret="other"), 401),
            (*callback("x"), 410),
            ({"streamlease-signature": signature("s", b"[]")}, b"[]", 400),
        ]:
            with pytest.raises(http.WebhookRefused) as refused:
                await pages.receive(headers, body)
            assert refused.value.status == status
    with pytest.raises(http.WebhookRefused, match="no callbacks any more"):
        await pages.receive(*callback("x"))
