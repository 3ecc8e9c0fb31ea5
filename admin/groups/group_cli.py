"""``streamlease group``: ``describe``, and the commands of this room's other modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from streamlease.admin.common_options import AsJson, RedisUrl
from streamlease.admin.facts.fact_tables import BORROWERS_OF_GROUP, STREAMS_OF_GROUP
from streamlease.admin.groups import dead_letter_cli, group_acts, group_list, group_reset, group_settings
from streamlease.admin.groups.group_flags import Sub
from streamlease.admin.output import line, shown
from streamlease.admin.watching import Watch, view
from streamlease.protocol.topics import SharedSubscription

if TYPE_CHECKING:
    from streamlease.admin.facts.group import Group
    from streamlease.agent.client import Client

app = typer.Typer(help="Consumer groups: shared subscriptions and their leaders.", no_args_is_help=True)
app.add_typer(dead_letter_cli.app, name="dead-letters")


app.command("declare")(group_settings.declare)


@app.command()
def describe(subscription: Sub, watch: Watch = None, redis: RedisUrl = None, as_json: AsJson = False) -> None:
    """Show one group: its leader, its streams with their owners and lag, and its borrowers."""
    shared = SharedSubscription.parse(subscription)

    async def look(client: Client) -> Group:
        from streamlease.admin.facts import group

        return await group.describe(client, shared)

    view(redis, look, _draw, as_json=as_json, watch=watch)


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
    for one in group.epochs or ():
        lower = "?" if one.lower is None else " ".join(",".join(map(str, epoch)) for epoch in one.lower)
        line(f"epochs of {one.space}: up to boundary {one.boundary}, frontier {lower or 'nothing'}")
    if group.truncated:
        lost = ", ".join(f"{count} of {stream}" for stream, count in group.truncated.items())
        line(f"messages that retention removed, or Redis lost, before it consumed them: {lost}")
    STREAMS_OF_GROUP.table(group.streams)
    line("")
    BORROWERS_OF_GROUP.table(group.borrowers)


app.command("list")(group_list.list_groups)
app.command("alter")(group_settings.alter)
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
