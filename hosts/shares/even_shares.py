"""Which host is to lead which group. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streamlease.registry import hosts


def shares(leaders: Mapping[str, str], alive: Iterable[str], *, even: bool) -> dict[str, str]:
    """Which host is to take which group. Pure; the same for all who see the same.

    Args:
        leaders: group -> who leads it, a host or a client; what others lead stays there.
        alive: the hosts that may lead.
        even: move groups between hosts, too, until none leads two more than another.
    """
    led: dict[str, list[str]] = {host: [] for host in sorted(alive)}
    moves: dict[str, str] = {}
    if not led:
        return moves
    of_clients = []
    for group, leader in sorted(leaders.items()):
        if leader in led:
            led[leader].append(group)
        elif hosts.is_client(leader):
            of_clients.append(group)

    def fewest() -> str:
        return min(led, key=lambda host: (len(led[host]), host))

    for group in of_clients:
        moves[group] = fewest()
        led[moves[group]].append(group)
    while even:
        most, least = max(led, key=lambda host: (len(led[host]), host)), fewest()
        if len(led[most]) - len(led[least]) < 2:
            break
        group = led[most].pop()
        moves[group] = least
        led[least].append(group)
    return {group: host for group, host in moves.items() if leaders[group] != host}
