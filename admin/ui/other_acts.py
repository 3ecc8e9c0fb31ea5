"""Acts from the console that are not on a group's leader: publish, replay, alter a space, drain a host.

Here is also the one entrance for all acts: who may ask for which, and what becomes of a request.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal, assert_never, get_args

from pydantic import Field, TypeAdapter, ValidationError

from streamlease.admin.facts.epochs import SpaceEpochs
from streamlease.admin.ui.logins import ConsoleRole
from streamlease.admin.ui.page_acts import GroupAct, Name, OfAdmins, OfOperators, OnGroup, do_to_group
from streamlease.protocol.errors import InvalidInput, InvalidOption
from streamlease.protocol.nearest import nearest
from streamlease.protocol.plurals import counted
from streamlease.protocol.topics import SharedSubscription, check_topic
from streamlease.registry import hosts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamlease.agent.client import Client
    from streamlease.registry.hosts import HostInfo

MOST_REPLAYED = 10_000
Text = Annotated[str, Field(max_length=1_000_000)]


class _Publish(OfOperators):
    act: Literal["publish"]
    topic: Name
    payload: Text = ""
    """In a space with typed columns a JSON object of them."""
    key: Annotated[str, Field(max_length=10_000)] | None = None
    headers: dict[str, str] = Field(default_factory=dict, max_length=100)
    diff: int | None = None


class _Replay(OfOperators):
    act: Literal["replay"]
    subscription: str
    places: list[Name] | None = Field(default=None, max_length=MOST_REPLAYED)
    """None: all that were not replayed yet."""


class _DrainHost(OfOperators):
    act: Literal["drain_host", "undrain_host"]
    host: Name


class _AbortPublisher(OfAdmins):
    act: Literal["abort_publisher"]
    space: Name
    publisher: Name
    confirm: Annotated[str, Field(max_length=1000)] | None = None
    """The name of the publisher once more, as somebody typed it."""


class _AlterSpace(OfAdmins):
    """The settings of a space, as text of the command's options; those that are none stay as they are."""

    act: Literal["alter_space"]
    space: Name
    from_generation: int | None = None
    """The newest one that was seen: other streams follow it, once."""
    streams: int | None = None
    rotate: bool = False
    retention: Name | None = None
    retention_bytes: Name | None = None
    retention_messages: Name | None = None
    retention_force: Literal["yes", "no"] | None = None
    group_expiry: Name | None = None
    compact_after: Name | None = None
    keep_in_memory: Name | None = None
    archive: Name | None = None
    archive_catalog: Name | None = None
    columns: Text | None = None
    """All of them, as JSON: ``{"columns": [{"name", "type", "nullable"}]}``."""
    confirm: Annotated[str, Field(max_length=1000)] | None = None
    """The name of the space once more: to remove what groups have not consumed."""


class _Terminate(OfOperators):
    act: Literal["terminate"]
    query: Name


AnyAct = GroupAct | _Publish | _Replay | _DrainHost | _AbortPublisher | _AlterSpace | _Terminate
_ASKED: TypeAdapter[AnyAct] = TypeAdapter(Annotated[AnyAct, Field(discriminator="act")])


def asked(body: bytes) -> AnyAct:
    """What a browser asks for.

    Raises:
        InvalidOption: it is no act, or a field is missing or not acceptable.
    """
    try:
        return _ASKED.validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        act, *where = map(str, first["loc"] or ("act",))
        if first["type"] == "missing":
            raise InvalidOption(f"{act} needs a {where[0]}: name one") from None
        raise InvalidOption(f"{'.'.join((act, *where))}: {first['msg']}") from None


def demanded(wanted: AnyAct) -> ConsoleRole:
    """The role that it takes: that of its kind."""
    match wanted:
        case OfOperators():
            return ConsoleRole.OPERATOR
        case OfAdmins():
            return ConsoleRole.ADMIN
        case _:
            assert_never(wanted)


def roles() -> dict[str, str]:
    """The role that each act takes, by the name of the act, for the buttons of the page."""
    return {
        name: (ConsoleRole.ADMIN if issubclass(kind, OfAdmins) else ConsoleRole.OPERATOR).name.lower()
        for kind in get_args(AnyAct)
        for name in get_args(kind.model_fields["act"].annotation)
    }


async def do(client: Client, wanted: AnyAct, who: str) -> list[str]:
    """Do an act, or with its `dry_run` only look what it would do; what is to be said of it.

    Raises:
        InvalidTopic, InvalidOption, InvalidInput: a field is not acceptable.
        UnknownGroup, ActRefused, NotLeader, Indefinite: as `Client.act`.
        UnknownSpace, SchemaMismatch, StreamSealed, NotDurable: of a message, or of other settings of a space.
        SpaceConflict, ArchiveUnavailable: of other settings of a space.
    """
    match wanted:
        case _Publish():
            return await _publish(client, wanted)
        case _Replay():
            return await _replay(client, wanted, who)
        case _DrainHost():
            return await _drain(client, wanted, who)
        case _AbortPublisher():
            return await _abort(client, wanted)
        case _AlterSpace():
            return await _alter_space(client, wanted)
        case _Terminate():
            return await _terminate(client, wanted, who)
        case OnGroup():
            return await do_to_group(client, wanted, who)
        case _:
            assert_never(wanted)


async def _publish(client: Client, wanted: _Publish) -> list[str]:
    space = await client.spaces.for_topic(check_topic(wanted.topic))
    payload: Any = wanted.payload
    if space.epochs:
        raise InvalidInput(
            f"space {space.name} has epochs, which need a publisher that stays: "
            f"use 'streamlease publish {wanted.topic} --publisher NAME'"
        )
    if space.newest_schema is not None:
        try:
            payload = json.loads(wanted.payload)
        except ValueError as error:
            raise InvalidInput(f"the payload is no JSON ({error}): give an object of the columns") from None
        if not isinstance(payload, dict):
            raise InvalidInput("the payload is no JSON object: give one of the columns")
    key = None if wanted.key is None else wanted.key.encode()
    if wanted.dry_run:
        return [f"it would go to {space.stream_for(wanted.topic, key)} of space {space.name}"]
    async with client.publisher() as publisher:
        more = {} if wanted.diff is None else {"diff": wanted.diff}
        stream, offset = await publisher.send(wanted.topic, payload, key, wanted.headers or None, **more)
    return [f"{stream}@{offset}"]


async def _replay(client: Client, wanted: _Replay, who: str) -> list[str]:
    from streamlease.admin.acting import declared
    from streamlease.registry.dead_letters import DeadLetters

    shared = SharedSubscription.parse(wanted.subscription)
    declaration = await declared(client, shared)
    kept = DeadLetters(client.redis)
    letters = {one.place: one for one in await kept.of(shared, declaration.options)}
    for place in wanted.places or ():
        if place not in letters:
            raise InvalidInput(f"{ascii(place)[:80]} is no dead letter of the group any more")
    chosen = [one for place, one in letters.items() if wanted.places is None or place in wanted.places]
    says = []
    for letter in [one for one in chosen if one.replayed is None][:MOST_REPLAYED]:
        if wanted.dry_run:
            says.append(f"{letter.place} would be published to {letter.facts.get('topic')} again")
        else:
            stream, offset = await kept.replay(shared, letter, who)
            says.append(f"{letter.place} is now {stream}@{offset}")
    return says or ["there is nothing to replay"]


async def _drain(client: Client, wanted: _DrainHost, who: str) -> list[str]:
    known = {one.host: one for one in await hosts.alive(client.redis)}
    if wanted.host not in known:
        raise InvalidInput(
            f"no leader host is called {ascii(wanted.host)[:80]}; {nearest(wanted.host, [*known])}"
        )
    undo = wanted.act == "undrain_host"
    if wanted.dry_run:
        return [_would_drain(known.pop(wanted.host), [*known.values()], undo)]
    said = await client.drain_host(wanted.host, who=who, undo=undo)
    if undo:
        return [f"{wanted.host} takes leaders again"]
    leaders = said["leaders"]
    return [f"{wanted.host} hands over {counted(len(leaders), 'group')}, one by one", *leaders[:200]]


def _would_drain(host: HostInfo, others: Sequence[HostInfo], undo: bool) -> str:
    if host.drained is not undo:
        return f"nothing: {host.host} is {'drained' if host.drained else 'not drained'} already"
    if undo:
        return f"{host.host} would take leaders again"
    takers = [one.host for one in others if not one.drained]
    if not takers:
        return f"{host.host} would keep its {counted(host.leaders, 'leader')}: no other leader host takes any"
    to = takers[0] if len(takers) == 1 else f"{len(takers)} other hosts"
    leads = counted(host.leaders, "leader")
    return f"{host.host} would hand {leads} to {to}, one by one, and take none; leases stay"


async def _abort(client: Client, wanted: _AbortPublisher) -> list[str]:
    from streamlease.admin.epochs.epochs_cli import give_up, present

    if wanted.dry_run:
        await present(client, wanted.space, wanted.publisher)
        shown = await SpaceEpochs.read(client.redis, await client.spaces.get(wanted.space))
        return _would_abort(wanted, shown)
    if wanted.confirm != wanted.publisher:
        raise InvalidOption(f"type {wanted.publisher} to confirm that it is given up")
    await give_up(client, wanted.space, wanted.publisher)
    return [f"{wanted.publisher} of space {wanted.space} is given up"]


def _would_abort(wanted: _AbortPublisher, shown: SpaceEpochs) -> list[str]:
    """What it has staged goes, and who waits for it goes on."""
    rows = [one for one in shown.publishers if one.name == wanted.publisher]
    if not rows:  # it is there, and has not been heard of yet
        return [f"{wanted.publisher} has staged nothing yet, and holds nothing back"]
    (row,) = rows
    ahead = len(shown.publishers) - 1
    says = [
        f"{counted(row.staged, 'message')} that {row.name} staged, and has not given up, would be dropped"
        if row.staged
        else f"{row.name} has staged nothing that would be dropped"
    ]
    if not row.holds_back:
        says.append("it holds no epoch back")
    elif ahead:
        others = counted(ahead, "other publisher")
        says.append(f"epochs of {others} would no longer wait for it at {_epochs(row.holds_back)}")
    else:
        says.append(f"it alone holds the frontier, at {_epochs(row.holds_back)}")
    return says


def _epochs(frontier: Sequence[Sequence[int]]) -> str:
    return " ".join(str(one[0]) if len(one) == 1 else f"({', '.join(map(str, one))})" for one in frontier)


async def _alter_space(client: Client, wanted: _AlterSpace) -> list[str]:
    from streamlease.admin.archives.archive_options import ArchiveChange
    from streamlease.admin.spaces.retention_options import RetentionOptions
    from streamlease.admin.spaces.space_changes import SpaceChanges, StreamChange, differences
    from streamlease.streams.entries.schemas import Schema

    force = None if wanted.retention_force is None else wanted.retention_force == "yes"
    others = wanted.streams is not None or wanted.rotate
    changes = SpaceChanges(
        StreamChange(wanted.streams, wanted.rotate, wanted.from_generation if others else None),
        RetentionOptions(
            wanted.retention, wanted.retention_bytes, wanted.retention_messages, force, wanted.group_expiry
        ),
        None if wanted.columns is None else Schema.parse(wanted.columns.encode()),
        wanted.compact_after,
        ArchiveChange(wanted.archive, wanted.keep_in_memory, wanted.archive_catalog),
    )
    if not changes.anything:
        raise InvalidOption("nothing is to be altered: fill in a field at least")
    before, after = await changes.look(
        client, wanted.space
    )  # so that nothing is done where something is refused
    if not wanted.dry_run:
        if force and wanted.confirm != wanted.space:
            raise InvalidOption(
                f"type {wanted.space} to confirm that it may lose what groups have not consumed"
            )
        after = await changes.make(client, wanted.space)
    return differences(before, after) or ["nothing: it is so already"]


async def _terminate(client: Client, wanted: _Terminate, who: str) -> list[str]:
    from streamlease.queries import store
    from streamlease.queries.core.machine import EndWanted
    from streamlease.queries.core.record import QueryOutcome

    record = (await store.read(client.redis, wanted.query)).record
    if wanted.dry_run:
        told = f"SIGTERM goes to {counted(len(record.left), 'worker')} of {record.name}"
        return [f"{told}, and SIGKILL after their grace"]
    stop = EndWanted(QueryOutcome.TERMINATED, f"{who} terminated it")
    record = await store.change(client.redis, wanted.query, stop, await store.redis_ms(client.redis))
    return [f"query {record.query} is {record.state.value}"]
