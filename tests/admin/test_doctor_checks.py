"""Each check of ``streamlease doctor``, made to find something."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from streamlease.admin.doctor import doctor, leading, rights
from streamlease.admin.doctor.findings import Finding, some
from streamlease.admin.doctor.held_up import stuck
from streamlease.admin.doctor.rights import examine, excess
from streamlease.admin.doctor.roles import ADMIN, CLIENT, HOST, OBSERVER, ROLES, Role
from streamlease.admin.doctor.server_facts import ServerFacts
from streamlease.admin.facts.group import BorrowerRow, Group, GroupStream, Paused
from streamlease.agent.client import Client, connect
from streamlease.protocol.group_options import GroupOptions
from streamlease.registry import hosts
from tests.admin.command import Command, InProcess

SUB = "$shared/g/flights/#"


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


@pytest.mark.parametrize(
    ("used", "limit", "level"), [("80", "100", "ok"), ("95", "100", "warn"), ("80", "0", "warn")]
)
def test_the_memory(used: str, limit: str, level: str) -> None:
    found = doctor._memory(facts(used_memory=used, maxmemory=limit, used_memory_human=used))
    assert found.level == level


@pytest.mark.parametrize(
    ("fields", "level"),
    [
        ({"aof_enabled": "1"}, "ok"),
        ({"aof_enabled": "1", "aof_last_write_status": "err"}, "fail"),
        ({"rdb_last_bgsave_status": "err"}, "fail"),
        ({"uptime_in_seconds": "100", "server_time_usec": "900000000", "rdb_last_save_time": "800"}, "warn"),
        ({"uptime_in_seconds": "100", "server_time_usec": "900000000", "rdb_last_save_time": "850"}, "ok"),
        ({}, "warn"),
    ],
)
def test_the_persistence(fields: dict[str, str], level: str) -> None:
    assert doctor._persistence(facts(**fields)).level == level


async def test_a_slow_connection_and_a_clock_that_is_off(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "SLOW_MS", 0.0)
    monkeypatch.setattr(doctor, "SKEW_SECONDS", -1.0)
    assert (await doctor._round_trip(client)).level == "warn"
    assert (await doctor._clock(client)).level == "warn"


async def test_hosts_that_are_all_drained(client: Client) -> None:
    assert (await leading.hosts_alive(client)).level == "ok"
    await hosts.beat(client.redis, hosts.HostInfo(host="one", drained=True))
    assert (await leading.hosts_alive(client)).level == "warn"
    await hosts.beat(client.redis, hosts.HostInfo(host="two"))
    assert (await leading.hosts_alive(client)).level == "ok"


async def as_user(client: Client, *rules: str) -> Client:
    """Another client, as a user with these rights."""
    redis: Any = client.redis
    await redis.execute_command("ACL", "SETUSER", "patient", "reset", "on", ">secret", *rules)
    return Client(client.url.replace("//", "//patient:secret@"))


async def judged(client: Client, role: str | None, *rules: str) -> tuple[Finding, Finding]:
    other = await as_user(client, *rules)
    try:
        needs, more = await doctor._rights(other, None if role is None else doctor.RoleName(role))
    finally:
        await other.close()
        await client.redis.execute_command("ACL", "DELUSER", "patient")  # type: ignore[union-attr]
    return needs, more


@pytest.mark.parametrize("role", ROLES.values(), ids=list(ROLES))
async def test_each_role_is_known_by_its_rights_and_has_no_more_than_it_needs(
    client: Client, role: Role
) -> None:
    for asked in (None, role.name):
        needs, more = await judged(client, asked, *role.rules()[2:])
        assert (needs.level, more.level) == ("ok", "ok"), (needs, more)
        assert more.message == f"no more than {rights._a(role)} needs"


@pytest.mark.parametrize(
    ("role", "rules", "lacks"),
    [
        (None, [*CLIENT.rules()[2:], "-xadd"], "may not XADD, which a client needs"),
        (None, [*OBSERVER.rules()[2:], "-evalsha", "-xrange"], "may not EVALSHA, XRANGE, which a observer"),
        ("host", [*CLIENT.rules()[2:]], "which a host needs"),
        ("admin", [*OBSERVER.rules()[2:]], "which a admin needs"),
        (
            "client",
            ["~sl:*", "&sl:*", "-@all", "+ping", "+evalsha", "+script|load"],
            "more, which a client needs",
        ),
    ],
)
async def test_what_a_user_lacks_is_said(
    client: Client, role: str | None, rules: list[str], lacks: str
) -> None:
    needs, _ = await judged(client, role, *rules)
    assert needs.level == "fail"
    assert lacks.replace("a observer", "an observer").replace("a admin", "an admin") in needs.message
    assert "docs/redis.md" in needs.remedy


OLD = "~sl:* ~rq:* &sl:* -@all +@connection +@read +@write +@scripting +@pubsub +info +time +config|get"


@pytest.mark.parametrize(
    ("role", "rules", "said"),
    [
        (None, ["~*", "&*", "+@all"], "FLUSHALL"),
        (None, ["~*", "&*", "+@all"], "read keys that are not Streamlease's"),
        ("client", OLD.split(), "CONFIG GET"),
        ("client", OLD.split(), "FLUSHALL"),
        ("client", [*CLIENT.rules()[2:], "~rq:*"], "write the queue of spawn jobs"),
        ("client", [*CLIENT.rules()[2:], "&*"], "publish on channels that are not Streamlease's"),
        ("client", [*ADMIN.rules()[2:]], "SCAN"),
        ("observer", [*OBSERVER.rules()[2:], "+config|get"], "CONFIG GET"),
        ("observer", [*CLIENT.rules()[2:]], "XADD"),
        ("host", [*HOST.rules()[2:], "+script|flush"], "SCRIPT FLUSH"),
    ],
)
async def test_what_a_user_may_beyond_its_role_is_said(
    client: Client, role: str | None, rules: list[str], said: str
) -> None:
    other = await as_user(client, *rules)
    try:
        found = await examine(other, None if role is None else ROLES[role])
    finally:
        await other.close()
        await client.redis.execute_command("ACL", "DELUSER", "patient")  # type: ignore[union-attr]
    assert found.more is not None
    assert said in found.more
    finding = excess(found, None)
    assert (finding.level, finding.message.count("may do more than")) == ("warn", 1)
    assert excess(found, "/run/x/redis.sock").level == "ok"


async def test_a_server_that_cannot_tell_is_tried_without_a_trace(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cannot(*_: object) -> None:
        return None

    monkeypatch.setattr(rights, "_told", cannot)
    keys = await client.redis.execute_command("KEYS", "*")  # type: ignore[union-attr]
    needs, more = await judged(client, "client", *CLIENT.rules()[2:])
    assert (needs.level, more.level) == ("ok", "ok")
    assert "this server cannot tell" in more.message
    needs, _ = await judged(client, "client", *CLIENT.rules()[2:], "-xadd", "-xrange")
    assert "may not XADD, XRANGE" in needs.message
    assert await client.redis.execute_command("KEYS", "*") == keys  # type: ignore[union-attr]


async def test_a_client_is_not_told_off_for_what_it_may_not_look_at(client: Client) -> None:
    other = await as_user(client, *CLIENT.rules()[2:])
    try:
        findings = [await doctor._queue(other), await doctor._keys(other)]
    finally:
        await other.close()
        await client.redis.execute_command("ACL", "DELUSER", "patient")  # type: ignore[union-attr]
    assert [(one.level, "not looked at" in one.message) for one in findings] == [("ok", True)] * 2


# -- streams -------------------------------------------------------------------------------------------------


def group(*, paused: Paused | None = None, silent: float = 1.0, **stream: Any) -> Group:
    usual = {
        "stream": "s.0.0", "owner": "worker", "lease_epoch": 1, "state": "granted", "since": None,
        "committed": 0, "next": 3, "lag": 3, "lag_seconds": 100.0, "why": "",
    }  # fmt: skip
    worker = BorrowerRow(
        id="b", name="worker", host=None, streams=1, drained=False, silent_seconds=silent,
        last_seen="2026-01-31T12:00:00Z",
    )  # fmt: skip
    return Group(
        subscription=SUB, start="earliest", strategy="count", leader=None, state="stable", note="",
        paused=paused, expired_at=None, truncated={}, lag=None, lag_seconds=None, epochs=None,
        streams=[GroupStream(**usual | stream)], borrowers=[worker], moves=0, longest_hand_over_ms=0,
        longest_take_over_ms=0, term=1,
    )  # fmt: skip


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
        (group(why="the group is paused", paused=Paused(who="me", at=None, until=None)), None),
    ],
)
def test_streams_that_are_held_up(seen: Group, said: str | None) -> None:
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
