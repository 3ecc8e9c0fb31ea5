"""``streamlease status``: server, leader hosts, spaces and groups in one view."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlease.admin.common_options import AsJson, RedisUrl
from streamlease.admin.facts.fact_tables import GROUPS_IN_STATUS, HOSTS_IN_STATUS, SPACES_IN_STATUS
from streamlease.admin.output import line, printable
from streamlease.admin.watching import Watch, view

if TYPE_CHECKING:
    from streamlease.admin.facts.status import StatusFacts


def status(watch: Watch = None, redis: RedisUrl = None, as_json: AsJson = False) -> None:
    """Show the server, leader hosts, spaces and groups in one view."""
    from streamlease.admin.facts import status

    view(redis, status.look, _draw, as_json=as_json, watch=watch)


def _draw(seen: StatusFacts) -> None:
    server = seen.redis
    line(f"{server.name} {server.version} at {server.address}, {server.memory} of memory used")
    line("")
    HOSTS_IN_STATUS.table(seen.hosts)
    line("")
    SPACES_IN_STATUS.table(seen.spaces)
    line("")
    GROUPS_IN_STATUS.table(seen.groups)
    for damaged in seen.damaged:
        line(f"{damaged.what} {printable(damaged.name)} cannot be read: {printable(damaged.why)}")
