"""Changing the options of a group that exists, for the command and for the console.

The declaration is replaced in one act, and then the leader steps down: the next one reads it when its term
begins. Borrowers keep their streams, and the history shows an ordinary step-down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from streamlease.admin.acting import declared

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.protocol.topics import SharedSubscription
    from streamlease.registry.groups import Declaration

Changing = Callable[["Declaration"], "Declaration"]


def changing(options: Mapping[str, Any], expiry_ms: int | None) -> Changing:
    """What makes the new declaration of the old one.

    Args:
        options: fields of `GroupOptions`; those that are left out keep their values.
        expiry_ms: None: as it is.
    """
    more: dict[str, Any] = {} if expiry_ms is None else {"expiry_ms": expiry_ms}

    def change(before: Declaration) -> Declaration:
        held = before.options.model_copy(update=dict(options))
        return before.model_copy(update={**more, "options": held})

    return change


async def alter_group(client: Client, shared: SharedSubscription, change: Changing, who: str) -> Declaration:
    """Change the declaration of a group; how it is declared from now on.

    Raises:
        UnknownGroup, InvalidOption, InvalidTopic: nothing was changed.
        ActRefused, NotLeader, Indefinite: it is changed, and the leader may not know yet.
    """
    from streamlease.protocol.acts import StepDown
    from streamlease.registry import leadership

    before = await declared(client, shared)
    after = await client.groups.alter(shared, change)
    leader = await leadership.read(client.redis, shared.id)
    if after.options != before.options and leader.held and not leader.expired:
        await client.act(shared, StepDown(), who=who)
    return after
