"""Operators' acts from the page: what may be asked, how it is done, and what is said of it.

Every act can be shown before it is done (``dry_run``); the answer is lines of text, the same for both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from streamlease.admin.acting import delete_group
from streamlease.admin.groups.group_reset import reset_rows
from streamlease.admin.moments import parse_moment
from streamlease.admin.output import iso_microseconds
from streamlease.protocol.acts import ResetProgress, made, parse
from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.topics import SharedSubscription

if TYPE_CHECKING:
    from streamlease.agent.client import Client

MOST_LINES = 200
"""Lines of one answer; of a longer list the rest is counted."""

Text = str | None


class PageAct(BaseModel):
    """What the page may ask of a leader; what is given of them makes an act."""

    model_config = ConfigDict(extra="forbid")

    subscription: str
    act: Literal[
        "rebalance", "step_down", "pause", "resume", "drain", "undrain", "move", "release", "reset", "delete"
    ]
    dry_run: bool = False
    until: Text = Field(None, max_length=100)
    """Of pause: a time or a duration; none: until it is resumed."""
    stream: Text = Field(None, max_length=1000)
    """Of move and release; of reset: only this one."""
    borrower: Text = Field(None, max_length=1000)
    """Of drain, undrain and move."""
    to: Text = Field(None, max_length=100)
    """Of reset: earliest, latest, a time, a duration back from now, or an offset."""
    shift: int | None = None
    """Of reset: so many messages further on, or back."""
    force: bool = False
    """Of delete: also under its consumers."""
    confirm: Text = Field(None, max_length=4000)
    """Of delete: the subscription once more, as somebody typed it."""


async def do(client: Client, wanted: PageAct, who: str) -> list[str]:
    """Do an act, or with its `dry_run` only look what it would do; what is to be said of it.

    Raises:
        InvalidTopic, InvalidOption, InvalidInput: a field is not acceptable.
        UnknownGroup, ActRefused, NotLeader, Indefinite: as `Client.act`.
    """
    shared = SharedSubscription.parse(wanted.subscription)
    if wanted.act == "reset":
        return await _reset(client, shared, wanted, who)
    if wanted.act == "delete":
        return await _delete(client, shared, wanted, who)
    if wanted.act == "step_down" and wanted.dry_run:
        # A dry run has nothing to tell of it, and there may be no leader to ask.
        return ["the leader would resign; another term begins with its next consumer, and streams stay"]
    arguments: dict[str, Any] = {}
    for name in _NEEDS.get(wanted.act, ()):
        arguments[name] = _given(wanted, name)
    if wanted.act == "pause" and wanted.until:
        arguments["until"] = await parse_moment(client.redis, "until", wanted.until, ahead=True)
    answer = await client.act(shared, parse(wanted.act, **arguments), who=who, dry_run=wanted.dry_run)
    return _told(wanted.act, answer)


_NEEDS = {
    "drain": ("borrower",),
    "undrain": ("borrower",),
    "move": ("stream", "borrower"),
    "release": ("stream",),
}


def _given(wanted: PageAct, name: str) -> str:
    found: str | None = getattr(wanted, name)
    if not found:
        raise InvalidOption(f"{wanted.act} needs a {name}: name one")
    return found


def _told(act: str, answer: dict[str, Any]) -> list[str]:
    match act:
        case "rebalance":
            plan = answer["plan"]
            moves = [f"{stream} is asked back" for stream in plan["revokes"]]
            moves += [f"{move['stream']} to {move['to']}" for move in plan["grants"]]
            return _cut(moves) or ["no moves: the group is balanced"]
        case "pause":
            until = answer["until_ms"]
            when = "it is resumed" if until is None else iso_microseconds(until * 1000)
            return [f"paused until {when}"]
        case "drain":
            return [f"{answer['borrower']} gives up {len(answer['streams'])} streams"]
        case "undrain":
            return [f"{answer['borrower']} may have streams again"]
        case "move":
            return [f"{answer['stream']} from {answer['from'] or 'nobody'} to {answer['to']}"]
        case "release":
            return [
                f"{answer['stream']} is taken from {answer['from']}; what it has not committed comes again"
            ]
        case "step_down":
            return [f"{answer['host']} steps down from term {answer['term']}"]
        case _:
            return ["the streams are granted again"]


def _cut(lines: list[str]) -> list[str]:
    left = len(lines) - MOST_LINES
    return lines if left <= 0 else [*lines[:MOST_LINES], f"and {left} more"]


async def _reset(client: Client, shared: SharedSubscription, wanted: PageAct, who: str) -> list[str]:
    if (wanted.to is None) == (wanted.shift is None):
        raise InvalidOption("say where the group goes on, in one way: to, or shift")
    only = [wanted.stream] if wanted.stream else []
    rows = await reset_rows(client, shared, to=wanted.to, shift=wanted.shift, only=only)
    moves = {row["stream"]: row["to"] for row in rows}
    if moves:
        await client.act(shared, made(ResetProgress, offsets=moves), who=who, dry_run=wanted.dry_run)
    again, skipped = sum(row["again"] for row in rows), sum(row["skipped"] for row in rows)
    head = f"{len(rows)} streams; {again} messages come again, {skipped} are skipped"
    return [head, *_cut([_reset_line(row) for row in rows])]


def _reset_line(row: dict[str, Any]) -> str:
    line = f"{row['stream']} from {row['from']} to {row['to']}"
    return f"{line} ({row['note']})" if row["note"] else line


async def _delete(client: Client, shared: SharedSubscription, wanted: PageAct, who: str) -> list[str]:
    if not wanted.dry_run and wanted.confirm != str(shared):
        raise InvalidOption(f"type {shared} to confirm that it is deleted")
    await delete_group(client, shared, who=who, force=wanted.force, dry_run=wanted.dry_run)
    if wanted.dry_run:
        return [f"{shared} with its progress and its history"]
    return [f"{shared} is deleted"]
