"""How the command carries out operators' acts: in whose name, and asking first where it is dangerous."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlease.admin.common_options import operator
from streamlease.protocol.errors import InvalidOption, UnknownGroup
from streamlease.protocol.nearest import nearest

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.protocol.acts import Act
    from streamlease.protocol.topics import SharedSubscription
    from streamlease.registry.groups import Declaration

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")]


async def declared(client: Client, subscription: SharedSubscription) -> Declaration:
    """The declaration of a group.

    Raises:
        UnknownGroup: nobody declared it; the message names the nearest ones.
    """
    try:
        return await client.groups.get(subscription)
    except UnknownGroup:
        known = [str(group) for group in await client.groups.list()]
        raise UnknownGroup(
            f"group '{subscription}' does not exist; {nearest(str(subscription), known)}; "
            f"see 'streamlease group list'"
        ) from None


async def act(
    client: Client,
    subscription: SharedSubscription,
    wanted: Act,
    *,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Have an act done in the name of who runs the command; the leader's answer.

    Raises:
        UnknownGroup, ActRefused, NotLeader, Indefinite: as `Client.act`.
    """
    await declared(client, subscription)
    return await client.act(subscription, wanted, who=operator(), dry_run=dry_run)


async def delete_group(
    client: Client, subscription: SharedSubscription, *, who: str, force: bool, dry_run: bool = False
) -> None:
    """Have the leader end a group, and remove all that is kept of it.

    Raises:
        UnknownGroup: nobody declared it; the message names the nearest ones.
        Indefinite, ActRefused, NotLeader: as `Client.act`.
    """
    if subscription not in await client.groups.list():
        await declared(client, subscription)
    await client.act(subscription, "delete", who=who, dry_run=dry_run, force=force)


def confirm(question: str, risk: str, *, yes: bool, as_json: bool) -> None:
    """Ask, unless the answer is given.

    Raises:
        InvalidOption: nobody is there to be asked.
    """
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        raise InvalidOption(f"{risk}: confirm with --yes")
    typer.confirm(question, abort=True, err=True)
