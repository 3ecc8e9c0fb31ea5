"""An operator asks a leader, or a host, to do something."""

from __future__ import annotations

from typing import Literal

from streamlease.protocol.acts import ActField
from streamlease.protocol.cuts import Offset, Text
from streamlease.protocol.messages.base import GroupMessage


class Command(GroupMessage):
    """An operator's act. `who` and `at` are kept in the group's history.

    A command may be sent again, under the same `request`, until it is answered: it is done once.
    """

    type: Literal["command"] = "command"
    request: Text
    act: ActField
    who: str = ""
    at: Offset = 0
    """When it was given, in milliseconds since 1970 by the clock of Redis."""
    dry_run: bool = False
    """Only answer what it would do."""


class CommandDone(GroupMessage):
    """An operator's act is done, or would be; `body` is what is to be said of it, a JSON document."""

    type: Literal["command_done"] = "command_done"
    request: Text
    body: str


class CommandRefused(GroupMessage):
    """An operator's act is not done, and this is why."""

    type: Literal["command_refused"] = "command_refused"
    request: Text
    error: str


class CommandAstray(GroupMessage):
    """The host that was asked does not lead the group: find the leader, and ask again."""

    type: Literal["command_astray"] = "command_astray"
    request: Text


class DrainHost(GroupMessage):
    """A leader host is to take no leaders and step down from its own, one by one; or to take them again.

    `group` is the name of the host.
    """

    type: Literal["drain_host"] = "drain_host"
    request: Text
    who: str = ""
    at: Offset = 0
    undo: bool = False
