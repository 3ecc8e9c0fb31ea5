"""The rows that the console shows, as they go to browsers."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pydantic import Field

from streamlease.admin.facts.hosts import Host, Server
from streamlease.admin.facts.rows import Count, FactRow, Seconds
from streamlease.admin.facts.spaces import SpaceRow

GroupWord = Literal[
    "stopped", "no leader", "no consumers", "paused", "behind", "consuming", "idle", "expired"
]
"""What a group is like, in one word; the first that fits. ``behind``: its oldest message waits for long."""


class StreamRow(NamedTuple):
    """One stream of a group, sent as a list; what is unknown is None."""

    stream: str
    owner: str | None
    lease_epoch: int
    state: str
    committed: int
    next: int | None
    lag: int | None


class SpaceOnPage(SpaceRow):
    messages: Count
    bytes: int
    held_by: list[str]
    held_since: int | None
    """Microseconds since 1970."""
    rate: Seconds | None
    """Messages per second that come in; null: not known yet."""
    lost: Count
    """Streams of which Redis has nothing."""


class GroupOnPage(FactRow):
    subscription: str
    leader: str | None
    term: Count
    streams: Count
    held: Count
    """Streams that somebody holds of a leader that lives."""
    borrowers: Count | None
    """Those of processes that live; null: nobody leads it, and the catalog cannot be read."""
    moves: Count
    lag: Count | None
    lag_seconds: Seconds | None
    """How long its oldest message waits; null: not known."""
    rate: Seconds | None
    """Messages per second that are consumed; null: not known yet."""
    state: GroupWord
    spaces: list[str]
    """Those that it reads."""
    paused_since: int | None
    """Milliseconds since 1970."""
    paused_by: str | None
    stopped: list[str]
    """Streams that are stopped at a message that failed."""
    dead_letters: Count
    """Messages of it that became dead letters."""
    expired: bool


class DamagedOnPage(FactRow):
    what: str
    why: str


class ProcessOnPage(FactRow):
    """A process that publishes, consumes or serves, as the catalog knows it."""

    process: str
    host: str
    pid: int
    query: str | None
    query_names: list[str]
    """What the authors of its Spark queries call them."""
    publishes: dict[str, Count]
    """How many topics of each space."""
    consumes: dict[str, Count]
    """How many borrowers of each group."""
    reads: list[str]
    """Filters that it reads without a group."""
    serves: list[str]


class Concern(FactRow):
    """Something that needs attention now, in words, and where to act."""

    level: Literal["bad", "warn"]
    text: str
    subscription: str | None = None
    space: str | None = None
    host: str | None = None
    query: str | None = None
    acts: list[str] = Field(default_factory=list)
    """What the buttons beside it do: names of acts of the console."""
    about: dict[str, str] = Field(default_factory=dict)
    """Fields of those acts that are known, such as the stream."""
    tab: str | None = None
    """The part of the page of its group, or space, that shows more."""


class Overview(FactRow):
    time: Count
    """Milliseconds since 1970."""
    redis: Server
    hosts: list[Host]
    spaces: list[SpaceOnPage]
    groups: list[GroupOnPage]
    processes: list[ProcessOnPage]
    """So many as a page shows."""
    publishing: Count
    """Processes that publish, those that are not shown among them."""
    consuming: Count
    concerns: list[Concern]
    damaged: list[DamagedOnPage]

    def parts(self) -> dict[str, dict[str, Any]]:
        """Its lists by the key of their rows, so that only what changed needs to be sent."""
        return {
            "groups": {one.subscription: one for one in self.groups},
            "spaces": {one.name: one for one in self.spaces},
        }
