"""The servers that the other tests lean on keep their promises."""

from __future__ import annotations

import os
import threading

import pytest
import redis

from tests.conftest import MakeServer
from tests.servers import (
    ALL_KINDS,
    NO_RETRY,
    REAL_KINDS,
    REDIS_VARIABLE,
    Kind,
    RedisServer,
    ServerMissing,
    find_redis7,
)


def test_each_kind_answers_and_begins_empty(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.keys() == []
        client.set("left-over", 1)


def test_what_the_test_before_wrote_is_gone(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.get("left-over") is None


def test_each_kind_runs_lua_on_streams(redis_url: str) -> None:
    script = "return redis.call('XADD', KEYS[1], ARGV[1] .. '-0', 'm', cjson.encode({a = 1}))"
    with redis.Redis.from_url(redis_url) as client:
        assert client.eval(script, 1, "s", "7") == b"7-0"
        assert client.xrange("s") == [(b"7-0", {b"m": b'{"a":1}'})]


def test_real_servers_know_wait_and_info(real_redis_url: str) -> None:
    with redis.Redis.from_url(real_redis_url) as client:
        assert client.wait(0, 10) == 0
        assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"


def test_the_embedded_url_is_a_valkey(embedded_redis_url: str) -> None:
    with redis.Redis.from_url(embedded_redis_url) as client:
        assert client.info("server")["server_name"] == "valkey"


@pytest.mark.parametrize("kind", REAL_KINDS, ids=str)
def test_a_persistent_server_keeps_acknowledged_writes_over_kill(
    kind: Kind, make_redis_server: MakeServer
) -> None:
    server = make_redis_server(kind, persistent=True)
    with server.client() as client:
        client.set("k", "v")
        before = server.pid
        server.restart()
        assert server.pid != before
        assert client.get("k") == b"v"


def test_a_throw_away_server_begins_empty_after_restart(make_redis_server: MakeServer) -> None:
    server = make_redis_server()
    with server.client() as client:
        client.set("k", "v")
    server.restart()
    with server.client() as client:
        assert client.get("k") is None


@pytest.mark.parametrize("kind", ALL_KINDS, ids=str)
@pytest.mark.slow
def test_a_paused_server_is_silent_until_resumed(kind: Kind, make_redis_server: MakeServer) -> None:
    server = make_redis_server(kind)
    with server.client(socket_timeout=0.2, retry=NO_RETRY) as client:
        assert client.ping()
        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.resume()
    with server.client(socket_timeout=10.0) as client:
        assert client.ping()


def test_a_paused_server_can_be_stopped(make_redis_server: MakeServer) -> None:
    server = make_redis_server()
    pid = server.pid
    server.pause()
    server.stop()
    assert not server.is_running
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_server_started_on_a_thread_outlives_that_thread(make_redis_server: MakeServer) -> None:
    made: list[RedisServer] = []
    thread = threading.Thread(target=lambda: made.append(make_redis_server()))
    thread.start()
    thread.join()
    with made[0].client(socket_timeout=5.0) as client:
        assert client.ping()


def test_settings_reach_the_server(make_redis_server: MakeServer) -> None:
    server = make_redis_server(settings={"maxmemory": "20mb"})
    with server.client() as client:
        assert client.config_get("maxmemory")["maxmemory"] == str(20 * 1024 * 1024)


def test_a_missing_server_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REDIS_VARIABLE, "/nonexistent")
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("tests.servers.UNPACKED_REDIS", "/nonexistent")
    with pytest.raises(ServerMissing, match="redis-server") as caught:
        find_redis7()
    assert "\n" not in str(caught.value)
