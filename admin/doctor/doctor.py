"""``streamlease doctor``: what could be wrong, each as one line with its remedy."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from streamlease.admin.common_options import AsJson, RedisUrl, check_seconds, chosen_url
from streamlease.admin.doctor.findings import Finding, Level, some
from streamlease.admin.output import document, printable
from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.plurals import counted

if TYPE_CHECKING:
    from pathlib import Path

    from streamlease.admin.doctor.server_facts import ServerFacts
    from streamlease.agent.client import Client


class RoleName(StrEnum):
    """The names in ``admin/doctor/roles.py``."""

    CLIENT = "client"
    HOST = "host"
    EXECUTOR = "executor"
    OBSERVER = "observer"
    ADMIN = "admin"


PINGS = 20
SLOW_MS = 50.0
SKEW_SECONDS = 1.0
FULL = 0.9
SCANNED_KEYS = 20_000
START_SECONDS = 2
"""Redis counts its start as a snapshot; so exactly are the two moments known."""

STUCK_SECONDS = 60.0


def doctor(
    stuck_after: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Report a held-up stream once a message in it has waited longer than this many seconds, "
            "and a frontier of epochs that has stood still for so long.",
        ),
    ] = STUCK_SECONDS,
    role: Annotated[
        RoleName | None,
        typer.Option(
            help="The role this Redis user should have. Default: the most powerful role it "
            "has all rights for."
        ),
    ] = None,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> int:
    """Check server, rights, hosts, queue, groups, streams, epochs, compaction and keys.

    Exit 0 if no check fails, even with warnings; exit 1 if one fails or Redis does not answer.
    """
    check_seconds("--stuck-after", stuck_after)
    findings = asyncio.run(_examine(chosen_url(redis), stuck_after, role))
    if as_json:
        from streamlease.admin.answers import Check, CheckPlace, Doctor

        checks = [
            Check(
                **finding._asdict() | {"places": tuple(CheckPlace(**one._asdict()) for one in finding.places)}
            )
            for finding in findings
        ]
        document(Doctor(ok=_healthy(findings), checks=checks))
    else:
        _print(findings)
    return 0 if _healthy(findings) else 1


def _healthy(findings: list[Finding]) -> bool:
    return all(finding.level is not Level.FAIL for finding in findings)


def _print(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.text import Text

    colors = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}
    console = Console(highlight=False, soft_wrap=True)
    for finding in findings:
        text = Text(f"{finding.level.value:<5}", style=colors[finding.level])
        text.append(f"{finding.check}: {printable(finding.message)}", style="default")
        if finding.remedy:
            text.append(f"; {printable(finding.remedy)}", style="default")
        console.print(text)


async def _examine(
    url: str, stuck_after: float = STUCK_SECONDS, role: RoleName | None = None
) -> list[Finding]:
    from streamlease.admin.doctor.compaction import compaction
    from streamlease.admin.doctor.fleets import Look, fleets, look
    from streamlease.admin.doctor.held_epochs import epochs
    from streamlease.admin.doctor.held_up import held_up
    from streamlease.admin.doctor.leading import hosts_alive, terms
    from streamlease.admin.doctor.retention_held import retention
    from streamlease.admin.doctor.server_facts import server_facts
    from streamlease.agent.client import Client

    client = Client(url)
    try:
        try:
            facts = await server_facts(client.redis)
        except StreamleaseError as error:
            return [Finding("server", Level.FAIL, str(error))]
        findings = [
            _server(facts),
            _version(facts),
            _eviction(facts),
            _persistence(facts),
            _memory(facts, ours=(embedded := _only_user_of(client, facts)) is not None),
        ]
        findings += await _rights(client, role, embedded)
        before: Look | None = None
        with contextlib.suppress(StreamleaseError):  # the second look says it
            before = await look(client)
        checks: list[tuple[str, Callable[[Client], Awaitable[Finding]]]] = [
            ("round trip", _round_trip),
            ("clock", _clock),
            ("leader hosts", hosts_alive),
            ("terms", partial(terms, facts=facts)),
            ("spawn queue", _queue),
            ("groups", _groups),
            ("streams", partial(held_up, stuck_after=stuck_after)),
            ("epochs", partial(epochs, stuck_after=stuck_after)),
            ("retention", partial(retention, stuck_after=stuck_after)),
            ("compaction", compaction),
            ("keys", _keys),
        ]
        damage = await _damage(client)
        findings += [damage] if damage is not None else []
        for name, check in checks:
            try:
                findings.append(await check(client))
            except StreamleaseError as error:
                findings.append(Finding(name, Level.FAIL, str(error)))
        try:
            findings += await fleets(client, before or await look(client), stuck_after)
        except StreamleaseError as error:
            findings.append(Finding("fleets", Level.FAIL, str(error)))
        return findings
    finally:
        await client.close()


# ---------------------------------------------------------------- the server


def _server(facts: ServerFacts) -> Finding:
    text = f"{facts.name} {facts.version} at {facts.address}"
    if facts.get("role") in ("slave", "replica"):
        primary = f"{facts.get('master_host')}:{facts.get('master_port')}"
        return Finding(
            "server",
            Level.FAIL,
            f"{text} is a replica of {primary}: nothing can be published, committed or led there",
            "give the address of the primary, or that of the Sentinels, which know it",
        )
    return Finding("server", Level.OK, f"{text} answers")


def _version(facts: ServerFacts) -> Finding:
    from streamlease.streams.redis.connection import OLDEST_VERSION

    oldest = ".".join(map(str, OLDEST_VERSION))
    text = facts.get("redis_version")
    numbers = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
    if not numbers:
        return Finding("version", Level.WARN, "unknown", f"make sure that it is {oldest} or newer")
    if numbers < OLDEST_VERSION:
        return Finding("version", Level.FAIL, f"{text} is older than {oldest}", "upgrade Redis")
    return Finding("version", Level.OK, f"compatible with Redis {text}")


def _eviction(facts: ServerFacts) -> Finding:
    policy = facts.get("maxmemory_policy", "unknown")
    if policy == "noeviction":
        return Finding("eviction", Level.OK, "maxmemory-policy is noeviction")
    if policy == "unknown":
        return Finding("eviction", Level.WARN, "maxmemory-policy is unknown", "make sure it is noeviction")
    return Finding(
        "eviction",
        Level.FAIL,
        f"maxmemory-policy is {policy}, which silently drops data",
        "run CONFIG SET maxmemory-policy noeviction",
    )


def _persistence(facts: ServerFacts) -> Finding:
    """From INFO alone: CONFIG GET would tell more, the passwords of the server among it."""
    if facts.get("aof_enabled") == "1":
        if facts.get("aof_last_write_status", "ok") != "ok":
            return Finding(
                "persistence", Level.FAIL, "the last write of the append-only file failed", "free disk space"
            )
        return Finding("persistence", Level.OK, "an append-only file is kept")
    if facts.get("rdb_last_bgsave_status", "ok") != "ok":
        return Finding("persistence", Level.FAIL, "the last snapshot failed", "look into the log of Redis")
    up = int(facts.get("uptime_in_seconds", "0"))
    now = int(facts.get("server_time_usec", "0")) // 1_000_000 or int(time.time())
    saved = now - int(facts.get("rdb_last_save_time", "0"))
    if facts.get("rdb_last_save_time") and saved < up - START_SECONDS:
        return Finding(
            "persistence",
            Level.OK,
            f"the last snapshot was made {saved} s ago; what came after it is lost in a crash",
        )
    return Finding(
        "persistence",
        Level.WARN,
        f"no append-only file, and no snapshot in the {up} s since the start: a restart may lose everything",
        "run CONFIG SET appendonly yes",
    )


def _memory(facts: ServerFacts, *, ours: bool = False) -> Finding:
    """What is used. A Redis that came along (`ours`) is for trials: what all are warned of, nobody reads."""
    used, limit = int(facts.get("used_memory", "0")), int(facts.get("maxmemory", "0"))
    shown = facts.get("used_memory_human", "unknown")
    if limit and used > FULL * limit:
        return Finding(
            "memory",
            Level.WARN,
            f"{shown} of {facts.get('maxmemory_human')} are used; when it is full, publishing is refused",
            "raise maxmemory, or delete what is not needed",
        )
    if not limit and ours:
        return Finding("memory", Level.OK, f"{shown} used, without a limit")
    if not limit:
        return Finding(
            "memory",
            Level.WARN,
            f"{shown} used, without a limit: Redis grows until the machine has no memory left",
            "run CONFIG SET maxmemory SIZE, below what the machine has; then publishing is refused instead",
        )
    return Finding("memory", Level.OK, f"{shown} of {facts.get('maxmemory_human')} used")


async def _round_trip(client: Client) -> Finding:
    from streamlease.streams.redis.connection import ask

    times = []
    for _ in range(PINGS):
        began = time.perf_counter()
        await ask(client.redis, [("PING",)])
        times.append((time.perf_counter() - began) * 1000)
    median = statistics.median(times)
    message = f"{median:.2f} ms (median of {PINGS})"
    if median > SLOW_MS:
        return Finding("round trip", Level.WARN, message, "run consumers and hosts nearer to Redis")
    return Finding("round trip", Level.OK, message)


def _only_user_of(client: Client, facts: ServerFacts) -> Path | None:
    """The directory of the embedded Redis whose only user this is; None for any other server or user."""
    from streamlease.admin.redis.embedded import directory_of
    from streamlease.streams.redis.connection import is_cluster

    if is_cluster(client.redis):
        return None
    user = client.redis.connection_pool.connection_kwargs.get("username") or "default"  # type: ignore[union-attr]
    place = directory_of(*(facts.get(name) for name in ("config_file", "process_id", "tcp_port")))
    return place if user == "default" else None


async def _rights(client: Client, role: RoleName | None, embedded: Path | None = None) -> list[Finding]:
    from streamlease.admin.doctor.rights import examine, excess, needed
    from streamlease.admin.doctor.roles import ROLES
    from streamlease.streams.redis.connection import is_cluster

    try:
        found = await examine(client, None if role is None else ROLES[role])
    except StreamleaseError as error:
        return [Finding("rights", Level.FAIL, str(error))]
    socket = None if is_cluster(client.redis) else client.redis.connection_pool.connection_kwargs.get("path")  # type: ignore[union-attr]
    return [needed(found, asked=role is not None), excess(found, socket, embedded)]


async def _clock(client: Client) -> Finding:
    from streamlease.streams.log.times import server_time

    before = time.time()
    there = await server_time(client.redis) / 1_000_000
    offset = there - (before + time.time()) / 2
    message = f"that of Redis is {abs(offset):.3f} s {'ahead of' if offset > 0 else 'behind'} this machine's"
    if abs(offset) > SKEW_SECONDS:
        remedy = "synchronise both by NTP; leases stay safe, but times in messages differ"
        return Finding("clock", Level.WARN, message, remedy)
    return Finding("clock", Level.OK, message)


# ---------------------------------------------------------------- Streamlease itself


async def _queue(client: Client) -> Finding:
    from streamlease.registry import hosts
    from streamlease.streams.redis.connection import is_cluster

    if is_cluster(client.redis):
        return Finding("spawn queue", Level.OK, "none on a Redis Cluster: the host that is asked leads")
    jobs = await _count_jobs(client)
    if jobs is None:
        return Finding("spawn queue", Level.OK, "not looked at: this user has no right to it, and needs none")
    waiting, failed = jobs
    message = f"{counted(waiting, 'job waits', 'jobs wait')}, {failed} failed"
    if failed:
        return Finding("spawn queue", Level.WARN, message, "look into the logs of the leader hosts")
    if waiting and await hosts.alive(client.redis):
        # A host takes a job at once, so one that is still there after a moment is stuck.
        await asyncio.sleep(1.0)
        if (await _count_jobs(client) or (0, 0))[0] >= waiting:
            return Finding("spawn queue", Level.WARN, message, "the leader hosts take no jobs: restart them")
    return Finding("spawn queue", Level.OK, message)


async def _count_jobs(client: Client) -> tuple[int, int] | None:
    """How many jobs wait, and how many failed or were refused; None if the user may not know."""
    from redis.exceptions import NoPermissionError

    from streamlease.registry.keys import FAILED_JOBS, WAITING_JOBS
    from streamlease.streams.redis.connection import exchange, good

    replies = await exchange(client.redis, [("LLEN", WAITING_JOBS), ("ZCARD", FAILED_JOBS)])
    if any(isinstance(reply, NoPermissionError) for reply in replies):
        return None
    waiting, failed = good(client.redis, replies)
    return int(waiting), int(failed)


async def _damage(client: Client) -> Finding | None:
    """What cannot be read; None if all can be."""
    from streamlease.admin.doctor.damaged_records import records

    try:
        finding = await records(client)
    except StreamleaseError as error:
        return Finding("records", Level.FAIL, str(error))
    return None if finding.level is Level.OK else finding


async def _groups(client: Client) -> Finding:
    from streamlease.admin.facts.groups import summaries

    groups, _ = await summaries(client, await client.groups.list())
    alone = [group.subscription for group in groups if group.leader is None and group.lag != 0]
    if alone:
        return Finding(
            "groups",
            Level.WARN,
            f"{counted(len(alone), 'has', 'have')} messages to consume, but no leader: {some(alone)}",
            "start a consumer of each, or see 'streamlease group describe SUB'",
        )
    return Finding("groups", Level.OK, f"{counted(len(groups), 'group')}; none waits for a leader")


async def _keys(client: Client) -> Finding:
    from redis.exceptions import NoPermissionError

    from streamlease.admin.doctor.orphans import find_orphans
    from streamlease.streams.redis.connection import exchange, servers

    (server, *_) = await servers(client.redis)
    (page,) = await exchange(server, [("SCAN", 0, "MATCH", "sl:*", "COUNT", 1)])
    if isinstance(page, NoPermissionError):
        return Finding("keys", Level.OK, "not looked at: this user may not list keys, and needs not")
    orphans, scanned, whole = await find_orphans(client, SCANNED_KEYS)
    seen = f"{'' if whole else 'the first '}{counted(scanned, 'key')} looked at"
    if orphans:
        return Finding(
            "keys",
            Level.WARN,
            f"{counted(len(orphans), 'belongs', 'belong')} to no known space or group ({seen}): "
            f"{some(orphans)}",
            "delete them by hand once you are sure that no older version uses them",
        )
    return Finding("keys", Level.OK, f"each belongs to a known space or group ({seen})")
