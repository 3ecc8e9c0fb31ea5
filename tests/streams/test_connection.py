"""What each failure of a connection means, and which servers are accepted."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import time
from collections.abc import Iterator

import pytest
from redis.exceptions import ResponseError

from streamlease.protocol.errors import (
    Indefinite,
    InvalidOption,
    StoreRefused,
    StoreUnavailable,
    Unsupported,
)
from streamlease.protocol.ids import StreamId
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis import connection, urls, wire
from streamlease.streams.redis.connection import (
    ask,
    check_server,
    connect,
    connect_blocking,
    exchange,
    run_blocking,
)
from streamlease.streams.redis.scripts import load_script
from tests.conftest import MakeServer
from tests.streams.helpers import Proxy, append, let_the_loop_see_it, rows


@pytest.fixture
def dead_port() -> Iterator[int]:
    """A port on which nobody answers."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.mark.parametrize(
    "url", ["", "nonsense", "http://host", "redis://host:port/0", "redis://u:geheim@h:p/0"]
)
def test_a_malformed_url_is_named_without_its_password(url: str) -> None:
    for make in (connect, connect_blocking):
        with pytest.raises(InvalidOption) as caught:
            make(url)
        assert "write redis://" in str(caught.value)
        assert "geheim" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_password_is_masked() -> None:
    assert connection.masked("redis://me:geheim@host/0") == "redis://me:***@host/0"
    assert connection.masked("redis://:geheim@host/0") == "redis://:***@host/0"
    assert connection.masked("unix:///x?password=geheim&db=1") == "unix:///x?password=***&db=1"
    assert connection.masked("redis://h:1,[::1]:2/s?sentinel_password=geheim") == (
        "redis://h:1,[::1]:2/s?sentinel_password=***"
    )


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://user:ge/heim@host:1/0", "percent-encoded"),
        ("redis://user:12/geheim@host", "percent-encoded"),
        ("redis://:ge?heim@host", "percent-encoded"),
        ("redis://u:12?heim@host", "percent-encoded"),
        ("redis://u:ge#heim@host", "%23"),
        ("redis://:geheim", "not HOST:PORT"),
        ("redis://u:geheim@", "not HOST:PORT"),
        ("redis://u:pw@ho st", "not HOST:PORT"),
        ("redis://u:pw@host:99999", "not HOST:PORT"),
        ("redis:u:geheim@host", "does not begin with a scheme"),
        ("u:geheim@host:6379", "does not begin with a scheme"),
        (":geheim@host", "does not begin with a scheme"),
        ("redis:/u:geheim@host", "does not begin with a scheme"),
        ("localhost:6379", "does not begin with a scheme"),
        ("redsi://u:geheim@host", "scheme is unknown, nearest: redis"),
        ("redis://u:geheim@host/x", "number of a database"),
        ("redis://h,i", "several are of"),
        ("unix://x?password=geheim", "names no path"),
        ("rediss://h?ssl_ca_cert=/geheim", "option 'ssl_ca_cert', which is unknown, nearest: ssl_ca_certs"),
        ("redis://h?passwort=geheim", "option 'passwort', which is unknown, nearest: password"),
        ("redis://h?password", "NAME=VALUE"),
        ("redis://h?decode_responses=true", "option 'decode_responses', which is unknown"),
        ("redis://h?ssl_ca_certs=/x", "write rediss://"),
        ("rediss://h?ssl_check_hostname=flase", "must be true or false"),
        ("rediss://h?ssl_cert_reqs=never", "none, optional or required"),
        ("redis://h?db=x", "option db must be a number"),
        ("redis://h?socket_timeout=0", "seconds above 0"),
        ("redis://h?sentinel_password=geheim", "for redis+sentinel"),
        ("redis+sentinel://h:1/s?sentinel_pasword=geheim", "nearest: sentinel_password"),
    ],
)
def test_what_is_wrong_with_a_url_is_said_without_any_part_of_a_secret(url: str, why: str) -> None:
    for make in (connect, connect_blocking):
        with pytest.raises(InvalidOption) as caught:
            make(url)
        text = str(caught.value)
        assert why in text
        assert not re.search(r"geheim|heim|\bge\b|:12", text), text
        assert "\n" not in text


@pytest.mark.parametrize(
    "url",
    [
        "redis://me:ge%2Fhe%40im@host:1/3",
        "redis://me:ge@heim@host",
        "rediss://h?ssl_check_hostname=false&ssl_cert_reqs=none&ssl_ca_certs=%2Fx%20y",
        "unix:///tmp/a@b.sock?db=2",
        "unix://me:pw@/tmp/x.sock",
        "redis://[::1]:7000",
        "redis+sentinel://u:p@h,i:2/main?sentinel_password=a%40b&db=1",
    ],
)
async def test_what_is_right_is_taken_as_it_is(url: str) -> None:
    client, blocking = connect(url), connect_blocking(url)
    assert connection.address(client) == connection.address(blocking)
    assert "@" not in connection.address(client).replace("a@b.sock", ""), "a password is not shown"
    await client.aclose()
    blocking.close()


async def test_tls_and_sockets_pass_through() -> None:
    assert connection.address(connect("rediss://host:7000/0")) == "host:7000"
    assert connection.address(connect("unix:///run/redis.sock")) == "/run/redis.sock"


async def test_a_loop_that_stands_still_while_it_connects_says_nothing_about_the_server(
    real_redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urls, "CONNECT_SECONDS", 0.2)
    client = connect(real_redis_url)
    held = asyncio.get_running_loop().create_task(ask(client, [("PING",)]))
    while not client.connection_pool._in_use_connections:  # noqa: ASYNC110 - a few turns of the loop
        await asyncio.sleep(0)
    time.sleep(0.4)  # noqa: ASYNC251 - as if the process had been stopped
    assert await held == [b"PONG"]
    await client.aclose()


async def test_a_server_that_does_not_take_connections_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urls, "CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(wire, "LATE_SECONDS", 60.0)  # however busy this machine is
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(8):  # more than the kernel takes for it
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        client = connect(f"redis://127.0.0.1:{full.getsockname()[1]}")
        begun = asyncio.get_running_loop().time()
        made = 0
        whole = client.connection_pool.get_connection

        async def counted() -> object:
            nonlocal made
            made += 1
            return await whole()

        monkeypatch.setattr(client.connection_pool, "get_connection", counted)
        with pytest.raises(StoreUnavailable, match="does not answer"):
            await ask(client, [("PING",)])
        assert asyncio.get_running_loop().time() - begun >= 0.2
        assert made == 1
        await client.aclose()


async def test_a_redis_that_is_not_there(dead_port: int) -> None:
    url = f"redis://127.0.0.1:{dead_port}"
    client, blocking = connect(url), connect_blocking(url)
    for question in (check_server(client), exchange(client, [("PING",)]), ask(client, [("PING",)])):
        with pytest.raises(StoreUnavailable) as caught:
            await question
        assert f"Redis at 127.0.0.1:{dead_port} does not answer" in str(caught.value)
        assert "start it, or pass --redis URL / set STREAMLEASE_REDIS_URL" in str(caught.value)
    with pytest.raises(StoreUnavailable):
        run_blocking(check_server(blocking))
    with pytest.raises(StoreUnavailable):
        run_blocking(exchange(blocking, [("PING",)]))
    await client.aclose()
    blocking.close()


async def test_a_good_server_is_accepted(redis_url: str) -> None:
    client, blocking = connect(redis_url), connect_blocking(redis_url)
    await check_server(client)
    run_blocking(check_server(blocking))
    await client.aclose()
    blocking.close()


async def test_a_server_that_may_drop_data_is_refused(make_redis_server: MakeServer) -> None:
    server = make_redis_server(settings={"maxmemory-policy": "allkeys-lru"})
    client, blocking = connect(server.url), connect_blocking(server.url)
    with pytest.raises(Unsupported, match=r"allkeys-lru.*CONFIG SET maxmemory-policy noeviction"):
        await check_server(client)
    with pytest.raises(Unsupported):
        run_blocking(check_server(blocking))
    await client.aclose()
    blocking.close()


async def test_a_server_that_wants_a_password(make_redis_server: MakeServer) -> None:
    server = make_redis_server()
    with server.client() as admin:
        admin.config_set("requirepass", "geheim")
    for url in (server.url, server.url.replace("//", "//:falsch@")):
        client = connect(url)
        with pytest.raises(StoreRefused, match="refused the login") as caught:
            await check_server(client)
        assert "geheim" not in str(caught.value)
        await client.aclose()
    with server.client(password="geheim") as admin:
        admin.config_set("requirepass", "")


def test_an_old_server_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"version 6\.0\.16: 6\.2 or newer"):
        connection._judge("here", [b"PONG", b"redis_version:6.0.16\r\n", b"maxmemory_policy:noeviction\r\n"])
    connection._judge("here", [b"PONG", b"redis_version:6.2.0\r\n", b"maxmemory_policy:noeviction\r\n"])


async def test_a_lost_answer_is_indefinite_and_the_next_exchange_is_well(embedded_redis_url: str) -> None:
    async with Proxy(int(embedded_redis_url.rsplit(":", 1)[1].split("/", maxsplit=1)[0])) as proxy:
        client, blocking = connect(proxy.url), connect_blocking(proxy.url)
        log, stream = AsyncLog(client), StreamId("s", 0, 0)
        await log.open([stream])
        proxy.lose(b"EVALSHA")
        with pytest.raises(Indefinite, match="after sending"):
            await log.append(append(stream, 0, rows(0, 2)))
        assert (await log.append(append(stream, 0, rows(0, 2)))).duplicate
        proxy.lose(b"HMGET")
        with pytest.raises(StoreUnavailable):
            await log.states([stream])
        assert await log.next_offsets([stream]) == {stream: 2}
        proxy.lose(b"ECHO")
        with pytest.raises(Indefinite):
            await asyncio.to_thread(run_blocking, exchange(blocking, [("ECHO", "x")]))
        assert await asyncio.to_thread(run_blocking, exchange(blocking, [("ECHO", "x")])) == [b"x"]
        assert proxy.lost == 3
        await client.aclose()
        blocking.close()


async def test_a_server_that_does_not_answer_in_time_is_indefinite(make_redis_server: MakeServer) -> None:
    server = make_redis_server()
    client, blocking = (
        connect(server.url, answer_seconds=0.2),
        connect_blocking(server.url, answer_seconds=0.2),
    )
    await exchange(client, [("PING",)])
    run_blocking(exchange(blocking, [("PING",)]))
    server.pause()
    with pytest.raises(Indefinite):
        await exchange(client, [("PING",)])
    with pytest.raises(Indefinite):
        run_blocking(exchange(blocking, [("PING",)]))
    server.resume()
    assert await exchange(client, [("ECHO", "x")]) == [b"x"]
    assert run_blocking(exchange(blocking, [("ECHO", "x")])) == [b"x"]
    await client.aclose()
    blocking.close()


async def test_a_cancelled_exchange_leaves_no_answer_for_the_next_one(make_redis_server: MakeServer) -> None:
    server = make_redis_server()
    client = connect(server.url)
    await exchange(client, [("PING",)])
    server.pause()
    task = asyncio.create_task(exchange(client, [("ECHO", "old")]))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(task, 0.05)
    server.resume()
    assert await exchange(client, [("ECHO", "new")]) == [b"new"]
    await client.aclose()


async def test_scripts_survive_a_restart(make_redis_server: MakeServer) -> None:
    server = make_redis_server()
    client = connect(server.url)
    log, streams = AsyncLog(client), [StreamId("s", 0, shard) for shard in range(3)]
    await log.open(streams)
    server.restart()
    await let_the_loop_see_it()
    await log.open(streams)
    assert await log.next_offsets(streams) == dict.fromkeys(streams, 0)
    await client.aclose()


def test_every_script_says_what_it_takes_and_replies() -> None:
    for name in ("append", "open", "seal", "schema", "raise"):
        text = load_script("streamlease.streams.log", name).text
        header = text.partition("\n\n")[0] + text
        assert text.startswith("-- ")
        for word in ("-- KEYS", "-- ARGV", "-- Replies"):
            assert word in header
    with pytest.raises(FileNotFoundError):
        load_script("streamlease.streams.log", "nope")


async def test_many_questions_at_once_are_answered_in_order_and_refusals_stay_in_their_places(
    embedded_redis_url: str,
) -> None:
    client = connect(embedded_redis_url)
    try:
        await exchange(client, [("SET", "text", "x"), ("HSET", "hash", "field", "ä")])
        questions = [("HMGET", "text" if n % 50 == 7 else "hash", "field", f"none {n}") for n in range(200)]
        replies = await exchange(client, questions)
        refused = [n for n, reply in enumerate(replies) if isinstance(reply, ResponseError)]
        assert refused == [7, 57, 107, 157]
        assert all(reply == ["ä".encode(), None] for n, reply in enumerate(replies) if n not in refused)
        with pytest.raises(
            StoreRefused,
            match=r"^a key in Redis has another type than it had \(WRONGTYPE .*; key text\): restore it from",
        ):
            await ask(client, questions)
        many = ("EVAL", "return redis.call('HGET', KEYS[2], 'x')", 5, *("a", "text", b"\xff", "c", "d"))
        with pytest.raises(StoreRefused, match=r"WRONGTYPE .*; key a, text, \ufffd, c, \.\.\.\): restore"):
            await ask(client, [many])
        assert await ask(client, [("HGET", "hash", "field")] * 100) == ["ä".encode()] * 100
        with (
            connect_blocking(embedded_redis_url) as blocking,
            pytest.raises(StoreRefused, match=r"WRONGTYPE .*; key text\): restore it"),
        ):
            run_blocking(ask(blocking, questions))
    finally:
        await client.aclose()


@pytest.mark.slow
async def test_many_questions_to_a_server_that_hangs_end_as_one_does(make_redis_server: MakeServer) -> None:
    server = make_redis_server()
    client = connect(server.url, answer_seconds=2.0)
    try:
        questions = [("HGET", "hash", "field")] * 200
        assert await ask(client, questions) == [None] * 200
        server.pause()
        with pytest.raises(StoreUnavailable):
            await ask(client, questions)
        server.resume()
        assert await ask(client, questions) == [None] * 200
    finally:
        await client.aclose()


def test_what_waits_on_a_loop_cannot_be_run_blocking() -> None:
    with pytest.raises(TypeError, match="takes what asks a blocking client"):
        run_blocking(asyncio.sleep(0))
