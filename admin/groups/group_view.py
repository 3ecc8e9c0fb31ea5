"""A group as operators see it: from its leader if one lives, else from its journal, with the lag of now."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from streamlease.admin.acting import declared
from streamlease.admin.output import iso_microseconds
from streamlease.leader import journal
from streamlease.leader.core import view
from streamlease.protocol.errors import Indefinite, NotLeader, StoreRefused, UnknownSpace
from streamlease.protocol.ids import StreamId
from streamlease.registry import leadership
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.times import WaitingMessage, server_time, waiting

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.protocol.topics import SharedSubscription
    from streamlease.registry.groups import Declaration

DESCRIBE_SECONDS = 3.0


async def describe(client: Client, subscription: SharedSubscription) -> dict[str, Any]:
    """The document of ``streamlease group describe --json``.

    Raises:
        UnknownGroup: nobody declared it.
        StoreUnavailable, StoreRefused.
    """
    declaration = await declared(client, subscription)
    seen = await look(client, declaration)
    now = await server_time(client.redis)
    streams = await _with_lag(client, seen["streams"], now)
    return {
        "subscription": str(subscription),
        "start": declaration.start,
        "strategy": seen["strategy"] or declaration.options.strategy or "count",
        "leader": seen["leader"],
        "state": seen["state"],
        "paused": _pause(seen["paused"]),
        "expired_at": _moment(seen.get("expired_at_ms")),
        "truncated": {s["stream"]: s["truncated"] for s in seen["streams"] if s.get("truncated")},
        "note": seen["note"],
        "lag": total_lag({"streams": streams}),
        "lag_seconds": _longest(streams),
        "streams": streams,
        "borrowers": [_borrower(borrower, now) for borrower in seen["borrowers"]],
        "moves": seen["moves"],
        "longest_hand_over_ms": seen["longest_hand_over_ms"],
        "longest_take_over_ms": seen["longest_take_over_ms"],
        "term": seen["term"],
    }


async def look(client: Client, declaration: Declaration) -> dict[str, Any]:
    """What the leader of a group says, or, if there is none or it may not be asked, its journal.

    `note` says so if a leader lives and the journal answers all the same.
    """
    record = await leadership.read(client.redis, declaration.shared.id)
    if not record.held or record.expired:
        return {**await _from_journal(client, declaration), "note": ""}
    leader = {"host": record.host, "term": record.term}
    try:
        seen = await ask_leader(client, declaration.shared)
    except StoreRefused:
        # To ask is to write into the leader's mailbox, which a user who may only read cannot do.
        note = "read from the journal: this user of Redis may not ask the leader"
        return _as_led(await _from_journal(client, declaration), leader, note)
    if seen is None:
        note = f"read from the journal: {record.host} did not answer within {DESCRIBE_SECONDS:g} s"
        return _as_led(await _from_journal(client, declaration), leader, note)
    return {**seen, "note": ""}


def _as_led(seen: dict[str, Any], leader: dict[str, Any], note: str) -> dict[str, Any]:
    """A group that has a leader, as its journal says: who holds what, and not why."""
    for stream in seen["streams"]:
        if stream["state"] == "absent":
            stream["state"] = "held"
        stream["why"] = ""
    state = seen["state"] if seen["paused"] is not None else "led"
    return {**seen, "leader": leader, "state": state, "note": note}


async def ask_leader(client: Client, subscription: SharedSubscription) -> dict[str, Any] | None:
    """What the live leader says; None if there is none, or it does not answer in time.

    Raises:
        StoreRefused: who asks may only read.
    """
    try:
        reply = await client.command(subscription, "describe", seconds=DESCRIBE_SECONDS)
    except (NotLeader, Indefinite):
        return None
    found: dict[str, Any] = json.loads(reply.body)
    return found if reply.ok else None


async def _from_journal(client: Client, declaration: Declaration) -> dict[str, Any]:
    shared = declaration.shared
    state = (await journal.recover(client.redis, shared.id)).state
    try:
        new = [one for one in await client.groups.streams(shared) if str(one) not in state.streams]
    except UnknownSpace:
        new = []
    # Streams that no leader has seen yet begin at the declared start.
    floors = await AsyncLog(client.redis).floors(new)
    starts = {str(one): max(declaration.positions.get(str(one), 0), floor) for one, floor in floors.items()}
    from streamlease.leader.core.records import StreamsAdded

    state.apply(StreamsAdded(starts=starts))
    return view.of_state(state)


async def _with_lag(client: Client, streams: list[dict[str, Any]], now: int) -> list[dict[str, Any]]:
    ids = [StreamId.parse(stream["stream"]) for stream in streams]
    places = [(id, int(stream["committed"])) for id, stream in zip(ids, streams, strict=True)]
    seen = await waiting(client.redis, places)
    rows = []
    for place, stream in zip(places, streams, strict=True):
        there = seen.get(place)
        next = there.next if there is not None else None
        # After a failover that lost writes the log may end below what was committed: then nobody knows.
        lag = next - stream["committed"] if next is not None and next >= stream["committed"] else None
        row = {
            "stream": stream["stream"],
            "owner": stream["owner"],
            "lease_epoch": stream["lease_epoch"],
            "state": stream["state"],
            "since": None
            if stream["since_ms"] is None
            else iso_microseconds(now - stream["since_ms"] * 1000),
            "committed": stream["committed"],
            "next": next,
            "lag": lag,
            "lag_seconds": 0.0 if lag == 0 else _seconds_since(there, now) if lag else None,
            "why": stream["why"],
        }
        rows.append(row)
    return rows


def _seconds_since(there: WaitingMessage | None, now: int) -> float | None:
    if there is None or there.since is None:
        return None
    return max(0.0, round((now - there.since) / 1_000_000, 3))


def _moment(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else iso_microseconds(milliseconds * 1000)


def _pause(paused: dict[str, Any] | None) -> dict[str, Any] | None:
    if paused is None:
        return None
    return {"who": paused["who"], "at": _moment(paused["at_ms"]), "until": _moment(paused["until_ms"])}


def _borrower(borrower: dict[str, Any], now: int) -> dict[str, Any]:
    return {
        "id": borrower["id"],
        "name": borrower["name"],
        "host": borrower["host"],
        "streams": borrower["streams"],
        "drained": borrower["drained"],
        "silent_seconds": round(borrower["last_seen_ms"] / 1000, 3),
        "last_seen": iso_microseconds(now - borrower["last_seen_ms"] * 1000),
    }


def _longest(streams: list[dict[str, Any]]) -> float | None:
    """How long the oldest message waits that is not consumed; None if that of one stream is unknown."""
    seconds = [stream["lag_seconds"] for stream in streams]
    return None if any(one is None for one in seconds) else max(seconds, default=0.0)


def total_lag(group: dict[str, Any]) -> int | None:
    """The lag of all streams; None if that of one is unknown."""
    lags = [stream["lag"] for stream in group["streams"]]
    return None if any(lag is None for lag in lags) else sum(lags)
