"""Commands on a Redis that takes nothing: a replica, or one without memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.admin.command import Command, finish, lines_of, until
from tests.conftest import MakeServer
from tests.servers import RedisServer

REPLICA = (
    "error: Redis is a read-only replica (You can't write against a read only replica.): "
    "connect to its primary"
)


@pytest.fixture
def server(make_redis_server: MakeServer) -> RedisServer:
    """Of the test's own."""
    return make_redis_server("redis7")


@pytest.fixture
def troubled(tmp_path: Path, server: RedisServer) -> Command:
    """The command, with a space on `server`."""
    command = Command(tmp_path, server.url)
    command.ok("space", "create", "flights", "--topics", "flights/#")
    return command


def limit(server: RedisServer, memory: str) -> None:
    with server.client() as admin:
        admin.config_set("maxmemory", memory)


def test_a_replica(troubled: Command, server: RedisServer) -> None:
    with server.client() as admin:
        admin.replicaof("127.0.0.1", "1")
    examined = troubled("doctor")
    first = examined.out.splitlines()[0]
    assert (examined.code, "is a replica of 127.0.0.1:1: nothing can be published" in first) == (1, True)
    for words in (
        ["group", "declare", "$shared/g/flights/#"],
        ["gateway", "--port", "0", "--max-polls", "9"],
    ):
        refused = troubled(*words)
        assert (refused.code, refused.err.splitlines()) == (1, [REPLICA]), refused


EPOCHS = ["--publisher", "p", "--epoch", "1"]


@pytest.mark.parametrize("more", [[], EPOCHS])
def test_a_publication_says_what_it_waits_for(
    troubled: Command, server: RedisServer, tmp_path: Path, more: list[str]
) -> None:
    if more:
        troubled.ok("space", "delete", "flights", "--yes")
        troubled.ok("space", "create", "flights", "--topics", "flights/#", "--epochs", "1")
    messages = tmp_path / "messages"
    messages.write_text("1\n2\n")
    limit(server, "1mb")
    process = troubled.start("publish", "flights/a", "--file", str(messages), *more)
    until(lambda: "\n" in troubled.log.read_text())
    (said,) = troubled.log.read_text().splitlines()
    assert "Redis is out of memory (" in said
    assert "script" not in said
    assert said.endswith("(tried again for 30 s at most)")
    assert process.poll() is None
    limit(server, "0")
    process.communicate(timeout=60)
    assert process.wait() == 0
    how = ["--epochs", "eager"] if more else []
    taken = troubled.ok("consume", "flights/#", "--from", "earliest", "--count", "2", *how)
    assert taken.out == "flights/a\t1\nflights/a\t2\n"


def test_a_gateway_begins_without_memory_if_one_was_there_before(
    troubled: Command, server: RedisServer
) -> None:
    words = ("gateway", "--port", "0", "--max-polls", "9")
    limit(server, "1mb")
    new = troubled(*words)
    assert (new.code, new.err.startswith("error: Redis is out of memory (")) == (1, True), new
    limit(server, "0")
    for memory in ("0", "1mb"):
        limit(server, memory)
        process = troubled.start(*words)
        (said,) = lines_of(process, 1)
        assert said.startswith("the gateway is at "), troubled.log.read_text()
        assert finish(process).code == 0


def test_a_redis_that_stands_still(troubled: Command, server: RedisServer) -> None:
    server.pause()
    for words in (["status"], ["doctor"]):
        refused = troubled(*words, STREAMLEASE_REDIS_URL=f"{server.url}?socket_timeout=0.5")
        (said,) = (refused.err or refused.out).splitlines()
        assert refused.code == 1
        assert said.partition(": ")[2].partition("Redis")[2] == (
            f" at 127.0.0.1:{server.port} does not answer: it takes too long; start it, or pass --redis URL"
        )
    server.resume()
