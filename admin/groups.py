"""``streamlease group``: declare, list and describe here; the acts are in `group_acts` and `group_reset`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlease.admin import dead_letters as dead_letters_room
from streamlease.admin import group_acts, group_reset
from streamlease.admin.group_acts import leader_of
from streamlease.admin.options import AsJson, RedisUrl
from streamlease.admin.output import document, line, table
from streamlease.admin.retention_options import parse_expiry
from streamlease.admin.running import for_each, with_client
from streamlease.admin.tail import parse_start
from streamlease.protocol.errors import InvalidOption, UnknownGroup
from streamlease.protocol.quantities import parse_duration
from streamlease.protocol.topics import SharedSubscription

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.protocol.group_options import GroupOptions
    from streamlease.registry.groups import Declaration

app = typer.Typer(help="Consumer groups: shared subscriptions and their leaders.", no_args_is_help=True)
app.add_typer(dead_letters_room.app, name="dead-letters")

Sub = Annotated[str, typer.Argument(metavar="SUB", help="'$shared/GROUP/FILTER' or '$queue/GROUP/FILTER'.")]


@app.command()
def declare(
    subscription: Sub,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="earliest|latest|TIME|OFFSET",
            help="Where the group begins: also at an ISO-8601 time, or an offset of each stream.",
        ),
    ] = "latest",
    expiry: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            help="Idle for longer, it holds no messages, such as 30d; or 'never'. Default: of its spaces.",
        ),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="How its streams are assigned. Default: of its leader host."),
    ] = None,
    revocation_timeout: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="How long a consumer may take to give a stream back, such as 10s. Default: 30s.",
        ),
    ] = None,
    on_poison: Annotated[
        str,
        typer.Option(
            metavar="dead-letter|stop", help="What becomes of a message that failed --max-failures times."
        ),
    ] = "dead-letter",
    max_failures: Annotated[int, typer.Option(help="How often one message may fail.")] = 5,
    retry_delay: Annotated[
        str,
        typer.Option(
            metavar="DURATION|none",
            help="A message that failed comes again after so long; after twice as long each further time.",
        ),
    ] = "500ms",
    max_retry_delay: Annotated[
        str, typer.Option(metavar="DURATION", help="But after no more than this, at most 1h.")
    ] = "1m",
    dead_letters: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="Dead letters stand below this topic. Default: $dead/GROUP."),
    ] = None,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Declare a group; one that exists stays as it is."""
    shared = SharedSubscription.parse(subscription)
    start_at = parse_start(start)
    options = _options(
        strategy, revocation_timeout, on_poison, max_failures, (retry_delay, max_retry_delay), dead_letters
    )
    expiry_ms = None if expiry is None else parse_expiry("--expiry", expiry)

    async def work(client: Client) -> tuple[bool, Declaration]:
        try:
            return False, await client.groups.get(shared)
        except UnknownGroup:
            return True, await client.groups.declare(shared, start_at, expiry_ms=expiry_ms, options=options)

    created, declaration = with_client(redis, work)
    if as_json:
        document({"subscription": declaration.subscription, "start": declaration.start, "created": created})
    else:
        was = "is declared" if created else "exists already"
        line(f"{declaration.subscription} {was} and begins at {declaration.start}")


def _options(
    strategy_name: str | None,
    revocation_timeout: str | None,
    on_poison: str,
    max_failures: int,
    retry_delays: tuple[str, str],
    dead_letters: str | None,
) -> GroupOptions:
    from streamlease.leader.planner import strategy
    from streamlease.protocol.group_options import ON_POISON, GroupOptions, check_options

    if strategy_name is not None:
        strategy(strategy_name)
    if on_poison not in ON_POISON:
        raise InvalidOption(f"--on-poison {ascii(on_poison)[:80]} is unknown: use {' or '.join(ON_POISON)}")
    return check_options(
        GroupOptions(
            strategy=strategy_name,
            revocation_timeout_ms=None
            if revocation_timeout is None
            else parse_duration("--revocation-timeout", revocation_timeout),
            on_poison="stop" if on_poison == "stop" else "dead-letter",
            max_failures=max_failures,
            retry_delay_ms=0
            if retry_delays[0] == "none"
            else parse_duration("--retry-delay", retry_delays[0]),
            max_retry_delay_ms=parse_duration("--max-retry-delay", retry_delays[1]),
            dead_letters=dead_letters,
        )
    )


@app.command("list")
def list_groups(redis: RedisUrl = None, as_json: AsJson = False) -> None:
    """All groups and who leads them."""
    from streamlease.registry import leadership

    async def work(client: Client) -> list[dict[str, Any]]:
        async def one(shared: SharedSubscription) -> dict[str, Any]:
            record = await leadership.read(client.redis, shared.id)
            return {"subscription": str(shared), "leader": leader_of(record), "term": record.term}

        return await for_each(await client.groups.list(), one)

    groups = with_client(redis, work)
    if as_json:
        document({"groups": groups})
        return
    table(
        ("SUBSCRIPTION", "LEADER", "TERM"),
        [(g["subscription"], (g["leader"] or {}).get("host"), g["term"]) for g in groups],
        "there are no groups: subscribe, or use 'streamlease group declare SUB'",
    )


@app.command()
def describe(subscription: Sub, redis: RedisUrl = None, as_json: AsJson = False) -> None:
    """One group: its leader, its streams with owner and lag, its borrowers."""
    from streamlease.admin import group_view

    shared = SharedSubscription.parse(subscription)
    group = with_client(redis, lambda client: group_view.describe(client, shared))
    if as_json:
        document(group)
        return
    leader = group["leader"]
    led = f"; led by {leader['host']} in term {leader['term']}" if leader else ""
    line(f"{group['subscription']}: {group['state']}{led}")
    if group["paused"] is not None:
        paused = group["paused"]
        line(f"paused by {paused['who']} at {paused['at']}, until {paused['until'] or 'it is resumed'}")
    line(
        f"{group['moves']} moves; longest hand-over {group['longest_hand_over_ms']} ms, "
        f"longest take-over {group['longest_take_over_ms']} ms"
    )
    if group["expired_at"] is not None:
        line(f"idle for too long: since {group['expired_at']} it keeps no messages from being removed")
    if group["truncated"]:
        lost = ", ".join(f"{count} of {stream}" for stream, count in group["truncated"].items())
        line(f"messages that retention removed before it consumed them: {lost}")
    columns = (
        "stream", "owner", "lease_epoch", "state", "since", "committed", "next", "lag", "lag_seconds", "why",
    )  # fmt: skip
    titles = [column.replace("_", " ").upper() for column in columns]
    table(titles, [[s[column] for column in columns] for s in group["streams"]], "it has no streams")
    members = ("name", "id", "host", "streams", "last_seen", "drained")
    line("")
    table(
        ["BORROWER", "ID", "HOST", "STREAMS", "LAST SEEN", "NOTE"],
        [
            [*(b[member] for member in members[:-1]), "drained" if b["drained"] else ""]
            for b in group["borrowers"]
        ],
        "it has no borrowers",
    )


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
