"""One group as operators see it: from its leader if one lives, else from its journal, with the lag of now."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamlease.admin.acting import declared
from streamlease.admin.facts.epochs import FrontierRow
from streamlease.admin.facts.groups import LeaderRow, longest, seconds_waiting
from streamlease.admin.facts.rows import (
    MANY,
    Count,
    FactRow,
    Moment,
    Seconds,
    StreamName,
    lag_of,
    moment,
    total,
)
from streamlease.admin.output import iso_microseconds
from streamlease.leader import journal
from streamlease.leader.core import view
from streamlease.protocol.errors import (
    ActRefused,
    Indefinite,
    NotLeader,
    StoreRefused,
    UnknownSpace,
    Unsupported,
)
from streamlease.protocol.ids import StreamId
from streamlease.registry import leadership
from streamlease.registry.commits import committed
from streamlease.streams.catalog.changes import Owners, list_rows
from streamlease.streams.catalog.keys import CATALOG, PROCESSES, rows
from streamlease.streams.epochs.beginning import begin_before
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.times import WaitingMessage, server_time, waiting

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.protocol.topics import SharedSubscription
    from streamlease.registry.groups import Declaration

DESCRIBE_SECONDS = 3.0


class Paused(FactRow):
    who: str
    at: Moment | None
    until: Moment | None


@dataclass
class GroupStream:
    __pydantic_config__ = MANY

    stream: StreamName
    owner: str | None
    lease_epoch: Count
    state: str
    since: Moment | None
    committed: Count
    next: Count | None
    lag: Count | None
    lag_seconds: Seconds | None
    why: str


class BorrowerRow(FactRow):
    id: str | None
    name: str
    query: str | None = None
    """Of which it is: its author's name for the Spark query, else the id of the submitted query."""
    host: str | None
    streams: Count
    drained: bool
    silent_seconds: float
    last_seen: Moment


class EpochsReached(FactRow):
    """How far a group that reads whole epochs is in one space: up to there all its streams are committed."""

    space: str
    boundary: Count
    lower: FrontierRow | None
    """What is not at or above an element of it is done; null: the boundary is not there any more."""


class Group(FactRow):
    subscription: str
    start: str
    strategy: str
    leader: LeaderRow | None
    state: str
    note: str
    paused: Paused | None
    expired_at: Moment | None
    truncated: dict[str, Count]
    lag: Count | None
    lag_seconds: Seconds | None
    epochs: list[EpochsReached] | None
    """Null: its consumers read each stream as it is."""
    streams: list[GroupStream]
    borrowers: list[BorrowerRow]
    moves: Count
    longest_hand_over_ms: Count
    longest_take_over_ms: Count
    term: Count

    def as_json(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        fields = self.model_dump(exclude={"streams"})
        streams = [vars(stream) for stream in self.streams]
        return {name: streams if name == "streams" else fields[name] for name in type(self).model_fields}


class GroupStatus(FactRow):
    subscription: str
    state: str
    leader: LeaderRow | None
    term: Count
    borrowers: Count
    streams: Count
    lag: Count | None

    @classmethod
    def of(cls, group: Group) -> GroupStatus:
        """The group in one line."""
        return cls(
            subscription=group.subscription,
            state=group.state,
            leader=group.leader,
            term=group.term,
            borrowers=len(group.borrowers),
            streams=len(group.streams),
            lag=group.lag,
        )


async def describe(client: Client, subscription: SharedSubscription) -> Group:
    """One group with its streams and borrowers.

    Raises:
        UnknownGroup: nobody declared it.
        StoreUnavailable, StoreRefused.
    """
    declaration = await declared(client, subscription)
    seen, note = await look(client, declaration)
    now = await server_time(client.redis)
    streams = await _streams(client, seen["streams"], now)
    queries = await _queries(client, subscription) if seen["borrowers"] else {}
    leader = seen["leader"]
    return Group(
        subscription=str(subscription),
        start=declaration.start,
        strategy=seen["strategy"] or declaration.options.strategy or "count",
        leader=None if leader is None else LeaderRow(**leader),
        state=seen["state"],
        note=note,
        paused=_pause(seen["paused"]),
        expired_at=moment(seen["expired_at_ms"]),
        truncated={s["stream"]: s["truncated"] for s in seen["streams"] if s["truncated"]},
        lag=total(stream.lag for stream in streams),
        lag_seconds=longest(stream.lag_seconds for stream in streams),
        epochs=await _epochs(client, declaration, streams),
        streams=streams,
        borrowers=[_borrower(borrower, now, queries.get(borrower["name"])) for borrower in seen["borrowers"]],
        moves=seen["moves"],
        longest_hand_over_ms=seen["longest_hand_over_ms"],
        longest_take_over_ms=seen["longest_take_over_ms"],
        term=seen["term"],
    )


async def _epochs(
    client: Client, declaration: Declaration, streams: list[GroupStream]
) -> list[EpochsReached] | None:
    if declaration.epochs is None:
        return None
    found = []
    for space in (await client.spaces.look()).matching(declaration.shared.filter):
        if space.name in declaration.epochs.spaces:
            at = {StreamId.parse(one.stream): one.committed for one in streams}
            there = {stream: committed for stream, committed in at.items() if stream.space == space.name}
            before = await begin_before(client.redis, space, there)
            lower: FrontierRow | None = None if before.number else [[0] * space.epochs]
            if before.bound is not None:
                lower = [[*epoch] for epoch in before.bound.lower]
            found.append(EpochsReached(space=space.name, boundary=before.number, lower=lower))
    return found


async def look(client: Client, declaration: Declaration) -> tuple[view.DescribedGroup, str]:
    """What the leader of a group says, or, if there is none or it may not be asked, its journal.

    How far streams are is read beside the journal: their owners commit, and the leader learns of it later.
    With it a note that says so if a leader lives and the journal answers all the same.
    """
    seen, note = await _look(client, declaration)
    so_far = await committed(client.redis, declaration.shared.id, [one["stream"] for one in seen["streams"]])
    for stream in seen["streams"]:
        stream["committed"] = max(stream["committed"], so_far.get(stream["stream"], 0))
    return seen, note


async def _look(client: Client, declaration: Declaration) -> tuple[view.DescribedGroup, str]:
    record = await leadership.read(client.redis, declaration.shared.id)
    if record.leader is None:
        return await _from_journal(client, declaration), ""
    leader: view.LeaderView = {"host": record.leader, "term": record.term}
    try:
        seen = await ask_leader(client, declaration.shared)
    except StoreRefused:
        # To ask is to write into the leader's mailbox, which a user who may only read cannot do.
        note = "read from the journal: this user of Redis may not ask the leader"
        return _as_led(await _from_journal(client, declaration), leader), note
    if seen is None:
        note = f"read from the journal: {record.host} did not answer within {DESCRIBE_SECONDS:g} s"
        return _as_led(await _from_journal(client, declaration), leader), note
    return seen, ""


def _as_led(seen: view.DescribedGroup, leader: view.LeaderView) -> view.DescribedGroup:
    """A group that has a leader, as its journal says: who holds what, and not why."""
    for stream in seen["streams"]:
        if stream["state"] == "absent":
            stream["state"] = "held"
        stream["why"] = ""
    state = seen["state"] if seen["paused"] is not None else "led"
    return {**seen, "leader": leader, "state": state}


async def ask_leader(client: Client, subscription: SharedSubscription) -> view.DescribedGroup | None:
    """What the live leader says; None if there is none, or it does not answer in time.

    Raises:
        StoreRefused: who asks may only read.
    """
    from streamlease.protocol.acts import DescribeGroup

    try:
        found: Any = await client.command(subscription, DescribeGroup(), seconds=DESCRIBE_SECONDS)
    except (ActRefused, NotLeader, Indefinite):
        return None
    seen: view.DescribedGroup = found
    return seen


async def _from_journal(client: Client, declaration: Declaration) -> view.DescribedGroup:
    shared = declaration.shared
    state = (await journal.recover(client.redis, shared.id)).state
    try:
        new = [one for one in await client.groups.streams(shared) if str(one) not in state.streams]
    except UnknownSpace:
        new = []
    # Streams that no leader has seen yet begin at the declared start.
    floors = await AsyncLog(client.redis).floors(new)
    starts = {str(one): max(declaration.positions.get(str(one), 0), floor) for one, floor in floors.items()}
    from streamlease.leader.core.state.records import StreamsAdded

    state.apply(StreamsAdded(starts=starts))
    return view.of_state(state)


async def _streams(client: Client, streams: list[view.StreamView], now: int) -> list[GroupStream]:
    places = [(StreamId.parse(stream["stream"]), int(stream["committed"])) for stream in streams]
    seen = await waiting(client.redis, places)
    return [_stream(one, seen.get(place), now) for one, place in zip(streams, places, strict=True)]


def _stream(stream: view.StreamView, there: WaitingMessage | None, now: int) -> GroupStream:
    next = None if there is None else there.next
    since, lag = stream["since_ms"], lag_of(next, stream["committed"])
    return GroupStream(
        stream=stream["stream"],
        owner=stream["owner"],
        lease_epoch=stream["lease_epoch"],
        state=stream["state"],
        since=None if since is None else iso_microseconds(now - since * 1000),
        committed=stream["committed"],
        next=next,
        lag=lag,
        lag_seconds=None if there is None or lag is None else seconds_waiting(lag, there.by, now),
        why=stream["why"],
    )


def _pause(paused: view.PausedView | None) -> Paused | None:
    if paused is None:
        return None
    return Paused(who=paused["who"], at=moment(paused["at_ms"]), until=moment(paused["until_ms"]))


async def _queries(client: Client, subscription: SharedSubscription) -> dict[str, str]:
    """What the catalog says of which query each borrower of a group is, by its name."""
    try:
        listed = await list_rows(client.redis, CATALOG, rows("borrowers"), Owners(PROCESSES))
    except (StoreRefused, Unsupported):
        return {}  # this user may not read it, or it is damaged: doctor says so
    found = {}
    for text in listed.rows.values():
        with suppress(ValueError, TypeError, LookupError):
            row = json.loads(text)
            if row["subscription"] == str(subscription) and (
                query := row.get("query_name") or row.get("query")
            ):
                found[str(row["borrower"])] = str(query)
    return found


def _borrower(borrower: view.BorrowerView, now: int, query: str | None) -> BorrowerRow:
    return BorrowerRow(
        id=borrower["id"],
        name=borrower["name"],
        query=query,
        host=borrower["host"],
        streams=borrower["streams"],
        drained=borrower["drained"],
        silent_seconds=round(borrower["last_seen_ms"] / 1000, 3),
        last_seen=iso_microseconds(now - borrower["last_seen_ms"] * 1000),
    )
