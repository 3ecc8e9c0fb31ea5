"""The number of streams changes while consumers are killed and come back: each key keeps its order."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.processes import Cluster, Process, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

SUB = "$shared/g/a/#"
TOPICS = 8
PART = 400


@pytest.fixture
def cluster(embedded_redis_url: str, tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(embedded_redis_url, tmp_path)
    cluster.run("space", "create", "s", "--topics", "a/#", "--streams", "4")
    yield cluster
    cluster.close()


def got(consumers: list[Process], event: str = "got") -> list[int]:
    """The numbers of all events of that name, in the order in which they were said."""
    events = sorted((one for c in consumers for one in c.said(event)), key=lambda one: float(one["at"]))
    return [number for one in events for number in one["numbers"]]


def confirmed(consumers: list[Process]) -> set[int]:
    """The numbers whose commit was said, or whose word for it a kill may have cut off."""
    said = set(got(consumers, "committed"))
    for consumer in consumers:
        last = consumer.events[-1]
        if consumer.process.poll() is not None and last["event"] == "got":
            said.update(last["numbers"])
    return said


def test_a_key_keeps_its_order_over_generations_and_kills(cluster: Cluster) -> None:
    cluster.host()
    consumers = [cluster.consumer(SUB), cluster.consumer(SUB)]
    for part, streams in enumerate((7, 2, 5)):
        before = len(got(consumers))
        cluster.publish(range(part * PART, part * PART + PART // 2), TOPICS)
        cluster.run("space", "alter", "s", "--streams", str(streams))
        cluster.publish(range(part * PART + PART // 2, (part + 1) * PART), TOPICS)
        until(lambda before=before: len(got(consumers)) > before, "something of it came", 60)  # type: ignore[misc]
        consumers[-2].signal(signal.SIGKILL)
        consumers.append(cluster.consumer(SUB))
    last = 3 * PART
    until(lambda: confirmed(consumers) == set(range(last)), "all is committed", 180)
    assert all(stream["lag"] == 0 for stream in cluster.run("group", "describe", SUB)["streams"])
    order = list(dict.fromkeys(got(consumers)))  # what comes again after a kill came before, in order
    for topic in range(TOPICS):
        mine = [number for number in order if number % TOPICS == topic]
        assert mine == list(range(topic, last, TOPICS))
    generations = cluster.run("space", "show", "s")["generations"]
    assert [one["streams"] for one in generations] == [4, 7, 2, 5]
