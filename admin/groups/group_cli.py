"""``streamlease group``: declare, list and describe here; the acts are in `group_acts` and `group_reset`."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Annotated

import typer

from streamlease.admin.common_options import AsJson, RedisUrl
from streamlease.admin.groups import dead_letter_cli, group_acts, group_alter, group_list, group_reset
from streamlease.admin.groups.group_flags import (
    DeadLetterTopic,
    Expiry,
    MaxFailures,
    MaxRetryDelay,
    OnPoisonWord,
    RetryDelay,
    RevocationTimeout,
    Strategy,
    given,
)
from streamlease.admin.messages.tail import parse_start
from streamlease.admin.output import document, line, shown, table
from streamlease.admin.running import with_client
from streamlease.admin.spaces.retention_options import parse_expiry
from streamlease.admin.watching import Watch, view
from streamlease.protocol.errors import UnknownGroup
from streamlease.protocol.topics import SharedSubscription

if TYPE_CHECKING:
    from streamlease.admin.facts.group import Group
    from streamlease.agent.client import Client
    from streamlease.registry.groups import Declaration

app = typer.Typer(help="Consumer groups: shared subscriptions and their leaders.", no_args_is_help=True)
app.add_typer(dead_letter_cli.app, name="dead-letters")

Sub = Annotated[str, typer.Argument(metavar="SUB", help="'$shared/GROUP/FILTER' or '$queue/GROUP/FILTER'.")]


@app.command()
def declare(
    subscription: Sub,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="earliest|latest|TIME|OFFSET",
            help="Where the group starts: earliest, latest, an ISO-8601 time, or an offset in each stream.",
        ),
    ] = "latest",
    expiry: Expiry = None,
    strategy: Strategy = None,
    revocation_timeout: RevocationTimeout = None,
    on_poison: OnPoisonWord = None,
    max_failures: MaxFailures = None,
    retry_delay: RetryDelay = None,
    max_retry_delay: MaxRetryDelay = None,
    dead_letters: DeadLetterTopic = None,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Declare a group. An existing group is left unchanged."""
    shared = SharedSubscription.parse(subscription)
    start_at = parse_start(start)
    wanted = given(
        strategy, revocation_timeout, on_poison, max_failures, (retry_delay, max_retry_delay), dead_letters
    )
    expiry_ms = None if expiry is None else parse_expiry("--expiry", expiry)

    from streamlease.protocol.group_options import GroupOptions, check_options

    options = check_options(GroupOptions(**wanted))

    async def work(client: Client) -> tuple[bool, Declaration]:
        try:
            held = await client.groups.get(shared)
        except UnknownGroup:
            return True, await client.groups.declare(shared, start_at, expiry_ms=expiry_ms, options=options)
        if held.subscription != str(shared):
            await client.groups.declare(shared)  # says what is in the way
        return False, held

    created, declaration = with_client(redis, work)
    if as_json:
        from streamlease.admin.answers import Declared

        document(Declared(subscription=declaration.subscription, start=declaration.start, created=created))
    else:
        was = "is declared" if created else "exists already"
        line(f"{declaration.subscription} {was} and begins at {declaration.start}")


@app.command()
def describe(subscription: Sub, watch: Watch = None, redis: RedisUrl = None, as_json: AsJson = False) -> int:
    """Show one group: its leader, its streams with their owners and lag, and its borrowers."""
    shared = SharedSubscription.parse(subscription)

    async def look(client: Client) -> Group:
        from streamlease.admin.facts import group

        return await group.describe(client, shared)

    return view(redis, look, _draw, as_json=as_json, watch=watch)


COLUMNS = (
    "stream", "owner", "lease_epoch", "state", "since", "committed", "next", "lag", "lag_seconds", "why",
)  # fmt: skip
"""Of a stream, as they stand in the table."""


def _draw(group: Group) -> None:
    leader = group.leader
    led = "" if leader is None else f"; led by {leader.host} in term {leader.term}"
    line(f"{group.subscription}: {group.state}{led}; streams are assigned by {group.strategy}")
    if group.paused is not None:
        paused = group.paused
        line(f"paused by {paused.who} at {paused.at}, until {paused.until or 'it is resumed'}")
    line(
        f"lag {shown(group.lag)} messages, {shown(group.lag_seconds)} s; {group.moves} moves; "
        f"longest hand-over {group.longest_hand_over_ms} ms, "
        f"longest take-over {group.longest_take_over_ms} ms"
    )
    if group.note:
        line(group.note)
    if group.expired_at is not None:
        line(f"idle for too long: since {group.expired_at} it keeps no messages from being removed")
    if group.truncated:
        lost = ", ".join(f"{count} of {stream}" for stream, count in group.truncated.items())
        line(f"messages that retention removed, or Redis lost, before it consumed them: {lost}")
    titles = [column.replace("_", " ").upper() for column in COLUMNS]
    cells = attrgetter(*COLUMNS)
    table(titles, [cells(stream) for stream in group.streams], "it has no streams")
    line("")
    table(
        ["BORROWER", "ID", "HOST", "STREAMS", "LAST SEEN", "NOTE"],
        [
            (one.name, one.id, one.host, one.streams, one.last_seen, "drained" if one.drained else "")
            for one in group.borrowers
        ],
        "it has no borrowers",
    )


app.command("list")(group_list.list_groups)
app.command("alter")(group_alter.alter)
app.command("rebalance")(group_acts.rebalance)
app.command("step-down")(group_acts.step_down)
app.command("pause")(group_acts.pause)
app.command("resume")(group_acts.resume)
app.command("drain")(group_acts.drain)
app.command("move")(group_acts.move)
app.command("release")(group_acts.release)
app.command("reset")(group_reset.reset)
app.command("expire")(group_acts.expire)
app.command("delete")(group_acts.delete)
app.command("history")(group_acts.history)
