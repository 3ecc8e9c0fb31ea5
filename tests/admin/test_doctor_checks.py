"""Each check of ``streamlease doctor``, made to find something."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from streamlease.admin import doctor
from streamlease.admin.findings import Finding, some
from streamlease.admin.held_up import stuck
from streamlease.admin.rights import rights
from streamlease.admin.server_facts import ServerFacts
from streamlease.agent.client import Client, connect
from streamlease.protocol.group_options import GroupOptions
from streamlease.registry import hosts
from tests.admin.command import Command, InProcess

SUB = "$shared/g/flights/#"
ALL = ["resetkeys", "~sl:*", "~rq:*", "resetchannels", "&sl:*", "+@all"]


@pytest.fixture
async def client(embedded_redis_url: str) -> AsyncIterator[Client]:
    async with connect(embedded_redis_url) as client:
        yield client


def facts(**fields: str) -> ServerFacts:
    return ServerFacts("here", fields)


@pytest.mark.parametrize(
    ("version", "level"), [("6.0.16", "fail"), ("6.2.0", "ok"), ("8.0", "ok"), ("", "warn")]
)
def test_the_version(version: str, level: str) -> None:
    assert doctor._version(facts(redis_version=version)).level == level


@pytest.mark.parametrize(("used", "level"), [("80", "ok"), ("95", "warn")])
def test_the_memory(used: str, level: str) -> None:
    found = doctor._memory(facts(used_memory=used, maxmemory="100", used_memory_human=used))
    assert found.level == level


@pytest.mark.parametrize(
    ("fields", "level"),
    [
        ({"aof_enabled": "1"}, "ok"),
        ({"aof_enabled": "1", "aof_last_write_status": "err"}, "fail"),
        ({}, "warn"),
    ],
)
async def test_the_persistence(client: Client, fields: dict[str, str], level: str) -> None:
    assert (await doctor._persistence(client, facts(**fields))).level == level


async def test_a_slow_connection_and_a_clock_that_is_off(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "SLOW_MS", 0.0)
    monkeypatch.setattr(doctor, "SKEW_SECONDS", -1.0)
    assert (await doctor._round_trip(client)).level == "warn"
    assert (await doctor._clock(client)).level == "warn"


async def test_hosts_that_are_all_drained(client: Client) -> None:
    assert (await doctor._hosts(client)).level == "ok"
    await hosts.beat(client.redis, hosts.HostInfo(host="one", drained=True))
    assert (await doctor._hosts(client)).level == "warn"
    await hosts.beat(client.redis, hosts.HostInfo(host="two"))
    assert (await doctor._hosts(client)).level == "ok"


@pytest.mark.parametrize(
    ("without", "level", "said"),
    [
        ([], "ok", "all that is needed"),
        (["-xadd"], "fail", "may not XADD: publishing"),
        (["-evalsha", "-xrange"], "fail", "may not EVALSHA, XRANGE: views fail"),
        (["resetkeys", "~sl:*"], "warn", "rq:*"),
        (["-@write", "-publish"], "ok", "may only read"),
    ],
)
async def test_the_rights(client: Client, without: list[str], level: str, said: str) -> None:
    rules = ["reset", "on", ">secret", *ALL, *without]
    await client.redis.execute_command("ACL", "SETUSER", "patient", *rules)  # type: ignore[union-attr]
    other = Client(client.url.replace("//", "//patient:secret@"))
    try:
        found = await rights(other)
    finally:
        await other.close()
        await client.redis.execute_command("ACL", "DELUSER", "patient")  # type: ignore[union-attr]
    assert (found.level, said in found.message) == (level, True), found


# -- streams -------------------------------------------------------------------------------------------------


def group(*, paused: Any = None, silent: float = 1.0, **stream: Any) -> dict[str, Any]:
    usual = {"stream": "s.0.0", "owner": "worker", "lag": 3, "lag_seconds": 100.0, "why": ""}
    return {
        "subscription": SUB,
        "paused": paused,
        "streams": [usual | stream],
        "borrowers": [{"name": "worker", "silent_seconds": silent}],
    }


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (group(why="open cut since 99.0 s"), "held by worker: open cut since 99.0 s"),
        (group(silent=9.0), "held by worker: its owner was not heard of for 9 s"),
        (group(silent=9.0, why="asked back"), "held by worker: asked back; its owner was not heard"),
        (group(owner=None, why="all borrowers are drained"), "held by nobody: all borrowers are drained"),
        (group(), None),
        (group(why="open cut since 9.0 s", lag_seconds=9.0), None),
        (group(why="open cut since 99.0 s", lag=0, lag_seconds=0.0), None),
        (group(why="the group is paused", paused={"who": "me"}), None),
    ],
)
def test_streams_that_are_held_up(seen: dict[str, Any], said: str | None) -> None:
    found = list(stuck(seen, 60.0))
    if said is None:
        assert found == []
    else:
        (text,) = found
        assert text.startswith(f"s.0.0 of {SUB}, ")
        assert said in text


async def test_a_stopped_stream_is_told_with_its_cause(client: Client, tmp_path: Path) -> None:
    cli = InProcess(tmp_path, client.url)
    await client.create_space("flights", ["flights/#"])
    async with client.publisher() as publisher:
        await publisher.send("flights/a", "bad")
    stop = GroupOptions(on_poison="stop", max_failures=1)
    async with client.subscribe(SUB, start="earliest", options=stop) as reader:
        async with asyncio.timeout(60):
            batch = await anext(reader)
        assert await batch.fail(0, ValueError("no number")) == "stopped"
        words = ("doctor", "--stuck-after", "0.01", "--json")
        document = (await asyncio.to_thread(cli, *words)).document
    (found,) = [check for check in document["checks"] if check["check"] == "streams"]
    assert found["level"] == "warn"
    assert f"flights.0.0 of {SUB}, held by nobody: offset 0 failed 1 times" in found["message"]
    assert document["ok"] is True


def test_the_exit_code_is_about_failures_only(flights: Command) -> None:
    assert flights("doctor").code == 0
    assert flights("doctor", "--stuck-after", "0").code == 2


def test_many_names_are_cut_short() -> None:
    assert some(["a", "b"]) == "a, b"
    assert some(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
    assert Finding("x", doctor.Level.OK, "m").remedy == ""
