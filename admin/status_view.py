"""``streamlease status``: server, leader hosts, spaces and groups in one view."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlease.admin.common_options import AsJson, RedisUrl
from streamlease.admin.output import line, printable, table
from streamlease.admin.watching import Watch, view

if TYPE_CHECKING:
    from streamlease.admin.facts.status import StatusFacts


def status(watch: Watch = None, redis: RedisUrl = None, as_json: AsJson = False) -> int:
    """Show the server, leader hosts, spaces and groups in one view."""
    from streamlease.admin.facts import status

    return view(redis, status.look, _draw, as_json=as_json, watch=watch)


def _draw(seen: StatusFacts) -> None:
    server = seen.redis
    line(f"{server.name} {server.version} at {server.address}, {server.memory} of memory used")
    line("")
    table(
        ("LEADER HOST", "PROCESS", "LEADERS"),
        [(host.host, host.pid, host.leaders) for host in seen.hosts],
        "no leader hosts: consumers lead by themselves, or start one with 'streamlease serve'",
    )
    line("")
    table(
        ("SPACE", "STREAMS", "MESSAGES", "TOPICS"),
        [(one.name, one.streams, one.messages, " ".join(one.topics)) for one in seen.spaces],
        "no spaces: create one with 'streamlease space create NAME --topics FILTER'",
    )
    line("")
    table(
        ("SUBSCRIPTION", "STATE", "LEADER", "TERM", "BORROWERS", "STREAMS", "LAG"),
        [
            (
                group.subscription,
                group.state,
                None if group.leader is None else group.leader.host,
                group.term,
                group.borrowers,
                group.streams,
                group.lag,
            )
            for group in seen.groups
        ],
        "no groups: subscribe, or use 'streamlease group declare SUB'",
    )
    for damaged in seen.damaged:
        line(f"{damaged.what} {printable(damaged.name)} cannot be read: {printable(damaged.why)}")
