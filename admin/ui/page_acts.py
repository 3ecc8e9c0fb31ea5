"""Operators' acts on groups, from the console: what may be asked, how it is done, and how the answer reads.

What is no act on a group is in `admin/ui/other_acts.py`. Every act can be shown before it is done
(``dry_run``); the answer is lines of text, the same for both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, assert_never

from pydantic import BaseModel, ConfigDict, Field

from streamlease.admin.acting import declared, delete_group
from streamlease.admin.groups.group_acts import moves
from streamlease.admin.groups.group_altering import alter_group, changing
from streamlease.admin.groups.group_reset import reset_rows
from streamlease.admin.moments import parse_moment
from streamlease.admin.output import iso_microseconds, shown
from streamlease.admin.spaces.retention_options import parse_expiry
from streamlease.leader.core.planning.strategies import strategy
from streamlease.protocol.acts import (
    Act,
    DrainBorrower,
    ExpireGroup,
    MoveStream,
    PauseGroup,
    PutDeadLetter,
    RebalanceGroup,
    ReleaseStream,
    ResetProgress,
    ResumeGroup,
    RetryMessage,
    StepDown,
    UndrainBorrower,
    made,
)
from streamlease.protocol.errors import InvalidOption, NotLeader
from streamlease.protocol.group_options import OnPoison, check_options
from streamlease.protocol.plurals import counted
from streamlease.protocol.quantities import parse_duration
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import hosts, leadership

if TYPE_CHECKING:
    from streamlease.admin.answers import ResetStream
    from streamlease.agent.client import Client
    from streamlease.registry.leadership import LeaderRecord

MOST_LINES = 200
"""Lines of one answer; of a longer list the rest is counted."""

Name = Annotated[str, Field(min_length=1, max_length=1000)]
Time = Annotated[str, Field(max_length=100)]


class PageAct(BaseModel):
    """One act, as a browser asks for it."""

    model_config = ConfigDict(extra="forbid")

    dry_run: bool = False


class OfOperators(PageAct):
    """What an operator may ask for."""


class OfAdmins(PageAct):
    """What loses something that cannot be brought back: an admin may ask for it."""


class OnGroup(PageAct):
    """An act on a group."""

    subscription: str


class _GroupAct(OnGroup, OfOperators):
    pass


class _Rebalance(_GroupAct):
    act: Literal["rebalance"]


class _StepDown(_GroupAct):
    act: Literal["step_down"]


class _Pause(_GroupAct):
    act: Literal["pause"]
    until: Time | None = None
    """A time or a duration; none: until it is resumed."""


class _Resume(_GroupAct):
    act: Literal["resume"]


class _Drain(_GroupAct):
    act: Literal["drain"]
    borrower: Name


class _Undrain(_GroupAct):
    act: Literal["undrain"]
    borrower: Name


class _Move(_GroupAct):
    act: Literal["move"]
    stream: Name
    borrower: Name


class _Release(_GroupAct):
    act: Literal["release"]
    stream: Name


class _Retry(_GroupAct):
    act: Literal["retry"]
    stream: Name


class _DeadLetter(_GroupAct):
    act: Literal["dead_letter"]
    stream: Name


class _Reset(_GroupAct):
    act: Literal["reset"]
    stream: Name | None = None
    """Only this one; none: all of them."""
    to: Time | None = None
    """Earliest, latest, a time, a duration back from now, or an offset."""
    shift: int | None = None
    """In its place: so many messages further on, or back."""


class _Alter(_GroupAct):
    """The options of the group; those that are none stay as they are."""

    act: Literal["alter"]
    strategy: Name | None = None
    revocation_timeout: Time | None = None
    on_poison: OnPoison | None = None
    max_failures: int | None = None
    retry_delay: Time | None = None
    """A duration, or ``none``."""
    max_retry_delay: Time | None = None
    dead_letters: Name | None = None
    expiry: Time | None = None
    """A duration, or ``never``."""


class _Confirmed(OnGroup, OfAdmins):
    confirm: Annotated[str, Field(max_length=4000)] | None = None
    """The subscription once more, as somebody typed it."""


class _Expire(_Confirmed):
    act: Literal["expire"]


class _Delete(_Confirmed):
    act: Literal["delete"]
    force: bool = False
    """Also under its consumers."""


GroupAct = (
    _Rebalance
    | _StepDown
    | _Pause
    | _Resume
    | _Drain
    | _Undrain
    | _Move
    | _Release
    | _Retry
    | _DeadLetter
    | _Reset
    | _Alter
    | _Expire
    | _Delete
)  # fmt: skip
"""What the console may ask of a leader."""


async def do_to_group(client: Client, wanted: GroupAct, who: str) -> list[str]:
    """Do an act, or with its `dry_run` only look what it would do; what is to be said of it.

    Raises:
        InvalidTopic, InvalidOption, InvalidInput: a field is not acceptable.
        UnknownGroup, ActRefused, NotLeader, Indefinite: as `Client.act`.
    """
    shared = SharedSubscription.parse(wanted.subscription)

    async def answer(act: Act) -> dict[str, Any]:
        return await client.act(shared, act, who=who, dry_run=wanted.dry_run)

    match wanted:
        case _Rebalance():
            return _planned((await answer(RebalanceGroup()))["plan"])
        case _StepDown():
            if wanted.dry_run:
                return [await _would_step_down(client, shared)]
            await _led(client, shared)
            said = await answer(StepDown())
            return [f"{said['host']} steps down from term {said['term']}"]
        case _Pause():
            until = None
            if wanted.until:
                until = await parse_moment(client.redis, "until", wanted.until, ahead=True)
            said = await answer(made(PauseGroup, until=until))
            return [f"paused until {_time(said['until_ms'])}"]
        case _Resume():
            await answer(ResumeGroup())
            return ["the streams are granted again"]
        case _Drain():
            said = await answer(made(DrainBorrower, borrower=wanted.borrower))
            return [f"{said['borrower']} gives up {counted(len(said['streams']), 'stream')}"]
        case _Undrain():
            said = await answer(made(UndrainBorrower, borrower=wanted.borrower))
            return [f"{said['borrower']} may have streams again"]
        case _Move():
            said = await answer(made(MoveStream, stream=wanted.stream, borrower=wanted.borrower))
            return [moves(said["stream"], said["from"], said["to"])]
        case _Release():
            said = await answer(made(ReleaseStream, stream=wanted.stream))
            return [f"{said['stream']} is taken from {said['from']}; what it has not committed comes again"]
        case _Retry():
            said = await answer(made(RetryMessage, stream=wanted.stream))
            return [f"{wanted.stream} goes on at offset {said['offset']}, which is tried anew"]
        case _DeadLetter():
            said = await answer(made(PutDeadLetter, stream=wanted.stream))
            return [f"{wanted.stream} goes on behind offset {said['offset']}, which becomes a dead letter"]
        case _Reset():
            return await _reset(client, shared, wanted, who)
        case _Alter():
            return await _alter(client, shared, wanted, who)
        case _Expire():
            _confirmed(wanted, f"type {shared} to confirm that it may lose what it has not consumed")
            await answer(ExpireGroup())
            return [f"{shared} holds no messages any more, until it is consumed again"]
        case _Delete():
            return await _delete(client, shared, wanted, who)
        case _:
            assert_never(wanted)


async def _led(client: Client, shared: SharedSubscription) -> LeaderRecord:
    """Who leads the group.

    Raises:
        UnknownGroup: there is no such group.
        NotLeader: nobody does. An act would have somebody lead it.
    """
    await declared(client, shared)
    record = await leadership.read(client.redis, shared.id)
    if record.leader is None:
        raise NotLeader(f"group '{shared}' has no leader now: there is nobody to step down")
    return record


async def _would_step_down(client: Client, shared: SharedSubscription) -> str:
    record = await _led(client, shared)
    others = [one for one in await hosts.alive(client.redis) if one.host != record.leader and not one.drained]
    if others:
        follows = f"one of {counted(len(others), 'other leader host')} follows"
    else:
        follows = "no other leader host takes leaders, so it, or a client, leads again when a consumer asks"
    return f"{record.leader} would resign from term {record.term}; {follows}; consumers keep their streams"


def _planned(plan: dict[str, Any]) -> list[str]:
    moves = [f"{stream} is asked back" for stream in plan["revokes"]]
    moves += [f"{move['stream']} to {move['to']}" for move in plan["grants"]]
    return _cut(moves) or ["no moves: the group is balanced"]


def _time(until: int | None) -> str:
    return "it is resumed" if until is None else iso_microseconds(until * 1000)


def _cut(lines: list[str]) -> list[str]:
    left = len(lines) - MOST_LINES
    return lines if left <= 0 else [*lines[:MOST_LINES], f"and {left} more"]


async def _reset(client: Client, shared: SharedSubscription, wanted: _Reset, who: str) -> list[str]:
    if (wanted.to is None) == (wanted.shift is None):
        raise InvalidOption("say where the group goes on, in one way: to, or shift")
    only = [wanted.stream] if wanted.stream else []
    rows = await reset_rows(client, shared, to=wanted.to, shift=wanted.shift, only=only)
    moves = {row.stream: row.to for row in rows}
    if moves:
        await client.act(shared, made(ResetProgress, offsets=moves), who=who, dry_run=wanted.dry_run)
    again, skipped = sum(row.again for row in rows), sum(row.skipped for row in rows)
    come = "comes" if again == 1 else "come"
    head = f"{counted(len(rows), 'stream')}; {counted(again, 'message')} {come} again, {skipped} skipped"
    return [head, *_cut([_reset_line(row) for row in rows])]


def _reset_line(row: ResetStream) -> str:
    line = f"{row.stream} from {row.from_} to {row.to}"
    return f"{line} ({row.note})" if row.note else line


async def _alter(client: Client, shared: SharedSubscription, wanted: _Alter, who: str) -> list[str]:
    if wanted.strategy is not None:
        strategy(wanted.strategy)
    none = wanted.retry_delay == "none"
    given = {
        "strategy": wanted.strategy,
        "revocation_timeout_ms": _milliseconds("revocation_timeout", wanted.revocation_timeout),
        "on_poison": wanted.on_poison,
        "max_failures": wanted.max_failures,
        "retry_delay_ms": 0 if none else _milliseconds("retry_delay", wanted.retry_delay),
        "max_retry_delay_ms": _milliseconds("max_retry_delay", wanted.max_retry_delay),
        "dead_letters": wanted.dead_letters,
    }
    options = {name: value for name, value in given.items() if value is not None}
    expiry = None if wanted.expiry is None else parse_expiry("expiry", wanted.expiry)
    if not options and expiry is None:
        raise InvalidOption("nothing is to be altered: fill in a field at least")
    change = changing(options, expiry)
    before = await declared(client, shared)
    if wanted.dry_run:
        after = change(before)
        check_options(after.options)
    else:
        after = await alter_group(client, shared, change, who)
    was, now = (one.options.model_dump() | {"expiry_ms": one.expiry_ms} for one in (before, after))
    changed = [
        f"{name} {shown(was[name])} becomes {shown(value)}"
        for name, value in now.items()
        if was[name] != value
    ]
    return changed or ["nothing: it is declared so already"]


def _milliseconds(name: str, text: str | None) -> int | None:
    return None if text is None else parse_duration(name, text)


def _confirmed(wanted: _Confirmed, otherwise: str) -> None:
    if not wanted.dry_run and wanted.confirm != str(SharedSubscription.parse(wanted.subscription)):
        raise InvalidOption(otherwise)


async def _delete(client: Client, shared: SharedSubscription, wanted: _Delete, who: str) -> list[str]:
    _confirmed(wanted, f"type {shared} to confirm that it is deleted")
    await delete_group(client, shared, who=who, force=wanted.force, dry_run=wanted.dry_run)
    if wanted.dry_run:
        return [f"{shared} with its progress and its history"]
    return [f"{shared} is deleted"]
