"""Continuous mode in real Spark: a worker killed, a clean stop, a function that never works."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamlease.protocol.errors import InvalidInput, InvalidOption, InvalidTopic
from streamlease.spark.archiving_job import archive_with_spark
from streamlease.spark.continuous import continuous
from streamlease.spark.setup.spark_ui import told_in_ui
from tests.spark.drivers import Driver
from tests.spark.refusals import one_line
from tests.spark.world import SUBSCRIPTION, World, wait_for


def told(path: Path) -> list[tuple[int, str, list[int]]]:
    """Worker, stream and offsets of each batch that the function has handled."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [tuple(json.loads(line)) for line in lines if line.endswith("\n")]


def offsets(path: Path) -> Counter[tuple[str, int]]:
    return Counter((stream, offset) for _, stream, some in told(path) for offset in some)


def wanted(world: World) -> set[tuple[str, int]]:
    return {(stream, offset) for stream in world.streams for offset in range(world.published[stream])}


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_killed_worker_is_replaced_and_a_stop_leaves_nothing_behind(
    world: World, tmp_path: Path, start_driver: Callable[..., Driver]
) -> None:
    world.publish(20)
    path, stop = tmp_path / "told", tmp_path / "stop"
    step = {"redis": world.url, "subscribe": str(SUBSCRIPTION), "told": str(path), "stop": str(stop)}
    failing = {**step, "subscribe": "$shared/never/t/#", "fails": True, "stop": str(tmp_path / "never")}
    driver = start_driver({"do": "continuous", **step}, {"do": "continuous", **failing})
    driver.wait_for(lambda: set(offsets(path)) == wanted(world))
    os.kill(told(path)[-1][0], signal.SIGKILL)
    world.publish(20)
    driver.wait_for(lambda: set(offsets(path)) == wanted(world))
    before = offsets(path)
    for stream in world.streams:
        seen = list(dict.fromkeys(offset for _, one, some in told(path) if one == stream for offset in some))
        assert seen == sorted(seen), "out of order"
    stop.touch()
    assert driver.process.wait(100) == 0, driver.log.read_text()[-4000:]
    assert offsets(path) == before
    wait_for(lambda: world.all_committed)
    lines = driver.log.read_text().splitlines()
    clean, failed = (json.loads(line) for line in lines if line.startswith(('{"messages', '{"error')))
    assert clean["restarts"] == 1
    assert not clean["active"]
    assert clean["messages"] <= world.total
    assert "this function never works" in failed["error"]
    assert 3 <= failed["restarts"] <= 6
    assert not failed["active"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"function": None}, InvalidOption),
        ({"function": "print"}, InvalidOption),
        ({"slots": 0}, InvalidOption),
        ({"slots": "2"}, InvalidOption),
        ({"slots": 1.5}, InvalidOption),
        ({"slots": True}, InvalidOption),
        ({"slots": 1025}, InvalidOption),
        ({"redis": 7}, InvalidOption),
        ({"redis": "http://x"}, InvalidOption),
        ({"redis": ""}, InvalidOption),
        ({"start": None}, InvalidOption),
        ({"start": "x"}, InvalidOption),
        ({"max_batch": "x"}, InvalidOption),
        ({"session_timeout": -1}, InvalidOption),
        ({"session_timeout": "x"}, InvalidOption),
        ({"session_timeout": float("nan")}, InvalidOption),
        ({"embedded_leader": "x"}, InvalidOption),
        ({"epochs": "atomic"}, InvalidOption),
        ({"epochs": 1}, InvalidOption),
        ({"max_batch": 0}, InvalidOption),
        ({"name": "a/b"}, InvalidInput),
        ({"subscription": "t/#"}, InvalidTopic),
    ],
)
def test_nonsense_is_refused_in_one_line(arguments: dict[str, Any], error: type[Exception]) -> None:
    class Session:
        sparkContext = None

    given: dict[str, Any] = {
        **{"subscription": str(SUBSCRIPTION), "function": print, "redis": "redis://127.0.0.1:1"},
        **arguments,
    }
    with pytest.raises(error) as refused:
        continuous(Session(), **given)  # type: ignore[arg-type]
    one_line(refused.value)


def test_what_is_no_function_or_url_is_refused_where_it_is_given() -> None:
    class Session:
        sparkContext = None

    spark: Any = Session()
    with pytest.raises(InvalidOption, match=r"^write is None: give the function that gets each micro-batch$"):
        told_in_ui(spark, None)  # type: ignore[arg-type]
    for url in (7, b"x", " "):
        with pytest.raises(InvalidOption, match=r"^the URL of Redis is "):
            archive_with_spark(spark, url, "s")  # type: ignore[arg-type]
