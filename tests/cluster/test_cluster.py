"""Real hosts and real consumers on a real Redis, some of them killed or stopped."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.processes import Cluster, Process, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

SUB = "$shared/g/a/#"
STREAMS = 8


@pytest.fixture
def cluster(real_redis_url: str, tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(real_redis_url, tmp_path)
    cluster.run("space", "create", "s", "--topics", "a/#", "--streams", str(STREAMS))
    yield cluster
    cluster.close()


def group(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = cluster.run("group", "describe", SUB)
    return found


def is_shared(cluster: Cluster, borrowers: int) -> dict[str, Any] | None:
    """The group, once `borrowers` hold all streams evenly."""
    seen = group(cluster)
    if seen["state"] != "stable" or len(seen["borrowers"]) != borrowers:
        return None
    return seen if all(b["streams"] == STREAMS // borrowers for b in seen["borrowers"]) else None


def leading(cluster: Cluster, hosts: list[Process]) -> Process:
    name = group(cluster)["leader"]["host"]
    pids = {host["host"]: host["pid"] for host in cluster.run("status")["hosts"]}
    (found,) = [host for host in hosts if host.pid == pids[name]]
    return found


def committed(*consumers: Process) -> list[int]:
    return sorted(n for consumer in consumers for n in consumer.numbers("committed"))


def first_after(consumer: Process, moment: float) -> float:
    """Seconds from `moment` to the first commit after it."""
    entry = until(
        lambda: next((e for e in consumer.said("committed") if e["at"] > moment), None), "it commits again"
    )
    return float(entry["at"]) - moment


def test_a_killed_consumer_loses_its_streams_to_the_other_one(cluster: Cluster) -> None:
    cluster.host()
    cluster.host()
    one = cluster.consumer(SUB)
    until(lambda: is_shared(cluster, 1), "the first one holds all")
    other = cluster.consumer(SUB)
    until(lambda: is_shared(cluster, 2), "both hold half")
    cluster.publish(range(500))
    until(lambda: len(committed(one, other)) >= 500, "all is committed")
    one.signal(signal.SIGKILL)
    cluster.publish(range(500, 1000))
    until(lambda: set(committed(one, other)) == set(range(1000)), "the other one does it all")
    assert committed(one, other) == list(range(1000))
    seen = until(lambda: is_shared(cluster, 1), "the other one holds all")
    assert seen["moves"] == STREAMS // 2 + STREAMS // 2


def test_a_killed_leading_host_is_followed_by_the_other_one(cluster: Cluster) -> None:
    hosts = [cluster.host(), cluster.host()]
    one, other = cluster.consumer(SUB), cluster.consumer(SUB)
    before = until(lambda: is_shared(cluster, 2), "both hold half")
    leader = leading(cluster, hosts)
    leader.signal(signal.SIGKILL)
    cluster.publish(range(500))
    until(lambda: len(set(committed(one, other))) >= 500, "the consumers go on")
    assert committed(one, other) == list(range(500))
    after = until(lambda: is_shared(cluster, 2), "both hold half again")
    assert after["leader"]["term"] > before["leader"]["term"]
    assert after["leader"]["host"] != before["leader"]["host"]
    assert [s["owner"] for s in after["streams"]] == [s["owner"] for s in before["streams"]]
    assert not one.said("refused") + other.said("refused")


def test_a_drained_leading_host_hands_over_at_once(cluster: Cluster) -> None:
    hosts = [cluster.host(), cluster.host()]
    # With such a session timeout no borrower asks for another leader by itself in the time given below.
    one, other = (cluster.consumer(SUB, "--session-timeout", "120") for _ in range(2))
    before = until(lambda: is_shared(cluster, 2), "both hold half")
    leader = leading(cluster, hosts)
    leader.signal(signal.SIGTERM)
    cluster.publish(range(500))
    until(lambda: len(set(committed(one, other))) >= 500, "the consumers go on")
    assert leader.process.wait(60) == 0
    assert committed(one, other) == list(range(500))
    after = until(lambda: is_shared(cluster, 2), "both hold half again")
    assert after["leader"]["term"] == before["leader"]["term"] + 1
    assert [s["owner"] for s in after["streams"]] == [s["owner"] for s in before["streams"]]


def test_a_consumer_that_was_stopped_for_too_long_commits_nothing(cluster: Cluster) -> None:
    cluster.host()
    cluster.host()
    cluster.publish(range(100))
    slow = cluster.consumer(SUB, "--hold")
    until(lambda: slow.said("got"), "it got something")
    held = slow.said("got")[0]
    slow.signal(signal.SIGSTOP)
    other = cluster.consumer(SUB)
    until(lambda: set(committed(other)) == set(range(100)), "the other one does it all")
    slow.answer()  # it commits as soon as it runs again
    slow.signal(signal.SIGCONT)
    refused = until(lambda: slow.said("refused"), "its commit is refused")
    assert (refused[0]["error"], refused[0]["numbers"]) == ("Fenced", held["numbers"])
    assert slow.numbers("committed") == []
    assert committed(other) == list(range(100))
    assert all(stream["lag"] == 0 for stream in group(cluster)["streams"])
    until(lambda: is_shared(cluster, 2), "it is back with its share")


def test_a_drained_only_host_leaves_the_consumers_to_lead_by_themselves(cluster: Cluster) -> None:
    host = cluster.host()
    one = cluster.consumer(SUB)
    until(lambda: is_shared(cluster, 1), "it holds all")
    host.signal(signal.SIGTERM)
    cluster.publish(range(100))
    until(lambda: len(set(committed(one))) >= 100, "it goes on")
    assert host.process.wait(60) == 0
    assert group(cluster)["leader"]["host"].startswith("embedded-")
