"""A borrower finds its leader, stays connected to it, and leaves."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from streamlease.protocol.cuts import Offset, Text
from streamlease.protocol.ids import HIGHEST_TOLD
from streamlease.protocol.messages.base import GroupMessage, Progress


class LeaderWanted(GroupMessage):
    """A new borrower asks its leader for a connection; also the request that finds the leader."""

    type: Literal["leader_wanted"] = "leader_wanted"
    borrower: Text
    session: Text
    name: Text
    """Static name: a newcomer with the same name takes its streams over at once."""
    arrival: Offset
    """Rises with every session of the group: of two with one name, the later one is right."""
    attempt: Offset
    """Rises with every borrower that one session makes under one name."""
    host: Text
    session_timeout_ms: Annotated[int, Field(ge=100, le=86_400_000)]
    attested: tuple[Progress, ...] = ()
    """What the borrower's session has seen of each stream: its newest lease epoch, and what is committed."""


class LeaderConnectResponse(GroupMessage):
    """The leader has accepted the borrower."""

    type: Literal["leader_connect_response"] = "leader_connect_response"
    borrower: Text
    term: Offset
    leader: Text


class NotLeader(GroupMessage):
    """The host that was asked does not lead the group: find the leader again."""

    type: Literal["not_leader"] = "not_leader"
    borrower: Text
    term: Offset = 0
    """The highest term of the group that the host has seen: a leader of a later one is not meant."""


class Ping(GroupMessage):
    """A borrower is alive and asks whether its leader is."""

    type: Literal["ping"] = "ping"
    borrower: Text
    term: Offset


class PingResponse(GroupMessage):
    """The leader is alive and knows the borrower."""

    type: Literal["ping_response"] = "ping_response"
    borrower: Text
    term: Offset


class Disconnect(GroupMessage):
    """The borrower leaves and gives all its streams back."""

    type: Literal["disconnect"] = "disconnect"
    borrower: Text
    progress: tuple[Progress, ...]


class Invalidate(GroupMessage):
    """The borrower is to end. After `replaced`, because another one has its name, and after `deleted`,
    because its group is no more, its session ends as well."""

    type: Literal["invalidate"] = "invalidate"
    borrower: Text
    term: Offset
    reason: Literal["unknown", "replaced", "stale", "revocation_timeout", "stepped_down", "deleted"]


class SpawnWanted(GroupMessage):
    """See to it that the group gets a leader: by a job that any host may take, or by leading it."""

    type: Literal["spawn_wanted"] = "spawn_wanted"
    above: Annotated[int, Field(ge=0, le=HIGHEST_TOLD)] = 0
    """The highest term of the group that the sender has seen; the new one must be higher."""
    placed: bool = False
    """The receiver was chosen to lead: no job is to be made any more."""
