"""``streamlease group pause|resume|drain|undrain|move|release|rebalance|step-down|expire|delete|history``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from streamlease.admin.acting import DryRun, Yes, act, confirm, declared, delete_group
from streamlease.admin.common_options import AsJson, RedisUrl, check_seconds, operator
from streamlease.admin.groups.group_flags import Sub
from streamlease.admin.moments import parse_moment
from streamlease.admin.output import document, line, note, table
from streamlease.admin.running import with_client
from streamlease.admin.watching import Watch, view
from streamlease.protocol.errors import Indefinite, InvalidOption, NotLeader, StoreRefused, StoreUnavailable
from streamlease.protocol.nearest import nearest
from streamlease.protocol.plurals import counted
from streamlease.protocol.topics import SharedSubscription

if TYPE_CHECKING:
    from streamlease.admin.answers import Done, History
    from streamlease.agent.client import Client
    from streamlease.registry.leadership import LeaderRecord

Outcome = TypeVar("Outcome", bound="Done")

BorrowerName = Annotated[
    str, typer.Argument(metavar="BORROWER", help="Name or id, as 'group describe' shows it.")
]
StreamName = Annotated[str, typer.Argument(metavar="STREAM", help="Such as flights.0.3.")]
WATCH_SECONDS = 0.05


def simple_act(
    kind: type[Outcome],
    subscription: str,
    name: str,
    redis: str | None,
    *,
    dry_run: bool = False,
    **arguments: str,
) -> Outcome:
    """Do an act that needs nothing but its arguments; what came of it, as a `kind`."""
    from streamlease.admin.answers import answered
    from streamlease.protocol import acts

    shared, wanted = SharedSubscription.parse(subscription), acts.parse(name, **arguments)
    answer = with_client(redis, lambda client: act(client, shared, wanted, dry_run=dry_run))
    return answered(kind, answer, subscription=str(shared), act=name, dry_run=dry_run)


def show(outcome: Done, text: str, *, as_json: bool) -> None:
    """Say what was done, or would be."""
    if as_json:
        document(outcome)
    else:
        line(f"would be done: {text}" if outcome.dry_run else text)


def pause(
    subscription: Sub,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME|DURATION",
            help="Resume automatically: at a time such as 2026-01-31T12:00:00Z, or after a "
            "duration such as 10m.",
        ),
    ] = None,
    dry_run: DryRun = False,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Stop handing out messages, except those already under way. Progress and data are kept."""
    shared = SharedSubscription.parse(subscription)

    async def work(client: Client) -> dict[str, Any]:
        from streamlease.protocol.acts import PauseGroup, made

        end = None if until is None else await parse_moment(client.redis, "--until", until, ahead=True)
        return await act(client, shared, made(PauseGroup, until=end), dry_run=dry_run)

    from streamlease.admin.answers import PausedUntil
    from streamlease.admin.facts.rows import moment

    when = moment(with_client(redis, work)["until_ms"])
    outcome = PausedUntil(subscription=str(shared), act="pause", dry_run=dry_run, until=when)
    show(outcome, f"{shared} is paused until {when or 'it is resumed'}", as_json=as_json)


def resume(
    subscription: Sub, dry_run: DryRun = False, redis: RedisUrl = None, as_json: AsJson = False
) -> None:
    """End a pause: hand out messages again."""
    from streamlease.admin.answers import Done

    outcome = simple_act(Done, subscription, "resume", redis, dry_run=dry_run)
    show(outcome, f"{subscription} goes on", as_json=as_json)


def drain(
    words: Annotated[
        list[str], typer.Argument(metavar="SUB BORROWER", help="A group, and one of its borrowers.")
    ] = [],  # noqa: B006 - Typer copies it
    host: Annotated[
        str | None, typer.Option(metavar="HOST", help="Drain this leader host (id or name) instead.")
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Let it take streams or leaders again.")] = False,
    timeout: Annotated[
        float,
        typer.Option(help="With --host: how many seconds to wait for each next group to move."),
    ] = 15.0,
    dry_run: DryRun = False,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> int:
    """Move all streams away from a borrower, or all leaders away from a host, until --undo.

    With --host, wait until the host leads nothing. Exit 1 if it still leads groups and none has moved in
    time.
    """
    if host is not None and not words and not dry_run:
        check_seconds("--timeout", timeout)
        return _drain_host(host, undo, timeout, redis, as_json)
    if host is not None and not words:
        raise InvalidOption("--dry-run is for borrowers: 'streamlease status' says what a host leads")
    if host is not None or len(words) != 2:
        raise InvalidOption("name what is drained: 'drain SUB BORROWER', or 'drain --host HOST'")
    subscription, borrower = words
    from streamlease.admin.answers import Drained, Undrained

    if undo:
        free = simple_act(Undrained, subscription, "undrain", redis, dry_run=dry_run, borrower=borrower)
        show(free, f"{free.borrower} may have streams again", as_json=as_json)
    else:
        empty = simple_act(Drained, subscription, "drain", redis, dry_run=dry_run, borrower=borrower)
        show(empty, f"{empty.borrower} gives up {counted(len(empty.streams), 'stream')}", as_json=as_json)
    return 0


def _drain_host(host: str, undo: bool, timeout: float, redis: str | None, as_json: bool) -> int:
    from streamlease.admin.answers import DrainedHost, answered

    what: Literal["drain", "undrain"] = "undrain" if undo else "drain"

    async def work(client: Client) -> DrainedHost:
        from streamlease.registry import hosts

        alive = await hosts.alive(client.redis)
        found = [one.host for one in alive if host in (one.host, one.name)]
        if len(found) != 1:
            known = nearest(host, [one.host for one in alive])
            raise InvalidOption(f"{len(found) or 'no'} leader host is called {host}; {known}")
        answer = await client.drain_host(found[0], who=operator(), undo=undo)
        left = [] if undo else await _still_led(client, found[0], answer["leaders"], timeout)
        return answered(DrainedHost, answer, act=what, not_moved=left)

    drained = with_client(redis, work)
    if as_json:
        document(drained)
    elif undo:
        line(f"host {drained.host} takes leaders again")
    else:
        moved = len(drained.leaders) - len(drained.not_moved)
        line(f"host {drained.host} has handed {moved} leaders to others")
    for group in drained.not_moved:
        note(
            f"error: group {group} is still led by {drained.host}, which none of its groups has left for "
            f"{timeout:g} s: look at its log, and repeat the command"
        )
    return 1 if drained.not_moved else 0


async def _still_led(client: Client, host: str, groups: list[str], patience: float) -> list[str]:
    """Wait until the host leads none of `groups`, or none has left it for so many seconds; those it leads."""
    from streamlease.registry import leadership

    left, newest = list(groups), time.monotonic()
    while left and time.monotonic() - newest < patience:
        try:
            records = await leadership.read_all(client.redis, left)
        except (StoreUnavailable, StoreRefused, Indefinite):  # asked again, as long as there is time
            await asyncio.sleep(WATCH_SECONDS)
            continue
        led = [group for group in left if records[group].held and records[group].host == host]
        if len(led) < len(left):
            left, newest = led, time.monotonic()
        if left:
            await asyncio.sleep(WATCH_SECONDS)
    return left


def move(
    subscription: Sub,
    stream: StreamName,
    to: Annotated[str, typer.Option("--to", metavar="BORROWER", help="Name or id of the borrower.")],
    dry_run: DryRun = False,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Give a stream to one borrower. It stays there until the borrower leaves or the group is rebalanced."""
    from streamlease.admin.answers import Moved

    outcome = simple_act(Moved, subscription, "move", redis, dry_run=dry_run, stream=stream, borrower=to)
    show(outcome, moves(stream, outcome.from_, outcome.to), as_json=as_json)


def moves(stream: str, owner: str | None, to: str) -> str:
    """Where a stream goes that is moved by hand."""
    if owner == to:
        return f"{stream} is with {to} already, and stays there"
    return f"{stream} moves from {owner or 'nobody'} to {to}"


def release(
    subscription: Sub,
    stream: StreamName,
    yes: Yes = False,
    dry_run: DryRun = False,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Take a stuck stream away from its owner now.

    What the owner has not committed may be delivered twice.
    """
    if not dry_run:
        confirm(
            f"Take {stream} from its owner now? What that one has not committed may be delivered twice.",
            f"what the owner of {stream} has not committed may be delivered twice",
            yes=yes,
            as_json=as_json,
        )
    from streamlease.admin.answers import Released

    outcome = simple_act(Released, subscription, "release", redis, dry_run=dry_run, stream=stream)
    show(outcome, f"{stream} is taken from {outcome.from_}", as_json=as_json)


def rebalance(
    subscription: Sub,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the moves, and change nothing.")] = False,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Spread the streams evenly over the borrowers with as few moves as possible.

    Undoes moves made by hand.
    """
    from streamlease.admin.answers import Rebalanced, answered
    from streamlease.protocol.acts import RebalanceGroup

    shared = SharedSubscription.parse(subscription)
    answer = with_client(redis, lambda client: act(client, shared, RebalanceGroup(), dry_run=dry_run))
    plan = answered(Rebalanced, answer["plan"], subscription=str(shared), dry_run=dry_run)
    if as_json:
        document(plan)
        return
    moves: list[tuple[str, str, str | None]] = [("revoke", stream, None) for stream in plan.revokes]
    moves += [("grant", move.stream, move.to) for move in plan.grants]
    line("planned, nothing was changed:" if dry_run else "asked for:")
    table(("MOVE", "STREAM", "TO"), moves, "no moves: the group is balanced")


def step_down(
    subscription: Sub,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the next leader.")] = 15.0,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make the leader resign, and wait for the next one. Borrowers keep their streams."""
    shared = SharedSubscription.parse(subscription)
    check_seconds("--timeout", timeout)

    async def work(client: Client) -> tuple[LeaderRecord, LeaderRecord]:
        from streamlease.admin.facts.group import ask_leader
        from streamlease.protocol.acts import StepDown
        from streamlease.registry import leadership

        await declared(client, shared)
        former = await leadership.read(client.redis, shared.id)
        if not former.held or former.expired:
            raise NotLeader(f"group '{shared}' has no leader now: there is nobody to step down")
        seen = await ask_leader(client, shared)
        await act(client, shared, StepDown())
        # Without borrowers nobody asks for a next leader.
        patience = timeout if seen is None or seen["borrowers"] else min(timeout, 1.0)
        present = former
        try:
            async with asyncio.timeout(patience):
                while not (present.held and present.term > former.term):
                    await asyncio.sleep(WATCH_SECONDS)
                    with contextlib.suppress(
                        StoreUnavailable, StoreRefused, Indefinite
                    ):  # it is done already
                        present = await leadership.read(client.redis, shared.id)
        except TimeoutError:
            return former, present  # nobody leads yet; the caller says so
        return former, present

    from streamlease.admin.answers import SteppedDown
    from streamlease.admin.facts.groups import LeaderRow

    former, present = with_client(redis, work)
    leader = LeaderRow.of(present) if present.term > former.term else None
    if as_json:
        document(SteppedDown(subscription=str(shared), former=LeaderRow.of(former), leader=leader))
    elif leader is not None:
        line(f"{shared} is led by {leader.host} in term {leader.term}")
    else:
        line(f"{former.host} stepped down; nobody leads {shared} until a consumer needs a leader")


def expire(subscription: Sub, yes: Yes = False, redis: RedisUrl = None, as_json: AsJson = False) -> None:
    """Expire a group without consumers now: retention may then remove messages it has not consumed."""
    confirm(
        f"Let {subscription} hold no messages any more?",
        f"group {subscription} may lose what it has not consumed",
        yes=yes,
        as_json=as_json,
    )
    from streamlease.admin.answers import Done

    outcome = simple_act(Done, subscription, "expire", redis)
    show(outcome, f"{subscription} holds no messages any more, until it is consumed again", as_json=as_json)


def delete(
    subscription: Sub,
    force: Annotated[
        bool,
        typer.Option("--force", help="Delete it even if it has consumers, which then end with an error."),
    ] = False,
    yes: Yes = False,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete a group, its progress and its history. --force deletes it even while it has consumers."""
    shared = SharedSubscription.parse(subscription)
    confirm(
        f"Delete {shared} with its progress and its history?",
        f"group {shared} is deleted with its progress and its history",
        yes=yes,
        as_json=as_json,
    )
    from streamlease.admin.answers import Done

    with_client(redis, lambda client: delete_group(client, shared, who=operator(), force=force))
    show(Done(subscription=str(shared), act="delete", dry_run=False), f"{shared} is deleted", as_json=as_json)


def history(
    subscription: Sub,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many, the newest ones.")] = 50,
    watch: Watch = None,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show who did what to a group, when, and with what result, newest last."""
    shared = SharedSubscription.parse(subscription)

    async def look(client: Client) -> History:
        from streamlease.admin.answers import Act, History
        from streamlease.admin.facts.rows import moment
        from streamlease.leader.core.state.operated import RefusedAct
        from streamlease.leader.journal import recover

        await declared(client, shared)
        state = (await recover(client.redis, shared.id)).state
        acts = [
            Act(
                at=moment(done.at or None),
                who=done.who or "the leader",
                act=done.act,
                what=done.what,
                outcome=f"refused: {done.error}" if isinstance(done, RefusedAct) else "done",
                request=done.request,
                details={} if isinstance(done, RefusedAct) else json.loads(done.body),
            )
            for done in state.operated.acts[-limit:]
        ]
        return History(subscription=str(shared), acts=acts)

    view(redis, look, _draw_history, as_json=as_json, watch=watch)


def _draw_history(seen: History) -> None:
    rows = [(done.at, done.who, done.act, done.what, done.outcome) for done in seen.acts]
    table(("AT", "WHO", "ACT", "WHAT", "OUTCOME"), rows, "nothing was done to it")
