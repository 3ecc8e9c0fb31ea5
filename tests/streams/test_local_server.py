"""Who names no Redis gets the one that runs for this user, and who names its address gets its password."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

import streamlease
from streamlease.admin.redis import embedded
from streamlease.admin.redis.embedded import USUAL_PORT, EmbeddedRedis
from streamlease.admin.redis.server_process import free_port, port_is_taken
from streamlease.protocol.errors import InvalidOption
from streamlease.spark import option_values
from streamlease.streams.redis import local_server
from streamlease.streams.redis.urls import DEFAULT_URL, redis_url


@pytest.fixture(autouse=True)
def _nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("STREAMLEASE_REDIS_URL", raising=False)


@pytest.fixture
def server() -> Iterator[EmbeddedRedis]:
    """The one of the default directory, not started."""
    server = EmbeddedRedis()
    yield server
    server.stop()


def test_it_listens_where_clients_look_unless_that_is_taken(server: EmbeddedRedis) -> None:
    was_taken = port_is_taken(USUAL_PORT)
    url = server.start(None)
    assert was_taken or url.endswith(f"@127.0.0.1:{USUAL_PORT}/0") or port_is_taken(USUAL_PORT)
    assert server.start(None) == server.start(0) == url


def test_a_taken_usual_port_is_no_failure(server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(embedded, "USUAL_PORT", port)
        assert f":{port}/" not in server.start(None)
        server.stop()
    assert f":{port}/" in server.start(None)


async def test_programs_and_spark_jobs_that_name_no_redis_find_it(server: EmbeddedRedis) -> None:
    url = server.start()
    assert redis_url() == option_values.redis_url({}) == url
    async with streamlease.connect() as client:
        await client.create_space("found", topics=["found/#"])
    with redis.Redis.from_url(url) as direct:
        assert direct.dbsize() > 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_its_address_without_a_login_is_enough(server: EmbeddedRedis, host: str) -> None:
    url = server.start()
    port = url.rpartition(":")[2].removesuffix("/0")
    given = f"redis://{host}:{port}/0?socket_timeout=30"
    with redis.Redis.from_url(redis_url(given)) as client:
        assert client.ping()
    assert option_values.redis_url({"redis": given}) == redis_url(given)


def test_other_addresses_and_given_logins_stay_as_they_are(server: EmbeddedRedis) -> None:
    port = server.start().rpartition(":")[2].removesuffix("/0")
    for url in (
        f"redis://127.0.0.1:{free_port()}", f"redis://user:own@127.0.0.1:{port}", f"redis://elsewhere:{port}",
        f"rediss://127.0.0.1:{port}", f"redis://127.0.0.1:{port}?password=own", f"redis://@127.0.0.1:{port}",
        "redis://127.0.0.1:port", "no url", "redis://[::1",
    ):  # fmt: skip
        assert redis_url(url) == url


def test_one_that_ended_is_not_meant(server: EmbeddedRedis) -> None:
    server.start()
    state = server.directory / local_server.STATE_FILE
    kept = state.read_text()
    server.stop()
    state.write_text(kept)
    assert local_server.running() is None
    assert redis_url() == DEFAULT_URL
    with pytest.raises(InvalidOption, match="redis start"):
        option_values.redis_url({})


def test_another_process_with_its_number_is_not_taken_for_it(server: EmbeddedRedis) -> None:
    server.start()
    state = server.directory / local_server.STATE_FILE
    kept = state.read_text()
    state.write_text(json.dumps({**json.loads(kept), "pid": os.getpid()}))
    assert redis_url() == DEFAULT_URL
    state.write_text(kept)  # or nobody could stop it
    assert local_server.running() is not None


def test_a_user_without_a_home_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", nowhere)
    assert redis_url() == DEFAULT_URL
