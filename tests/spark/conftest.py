"""A world to run queries in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamlease.spark.core.conversations import resuming
from tests.conftest import MakeServer
from tests.spark.applications import Application
from tests.spark.drivers import Driver
from tests.spark.durable import Durable
from tests.spark.shop import Shop
from tests.spark.world import World


@pytest.fixture
def make_world(embedded_redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., World]]:
    """Makes a `World` on an empty Redis, which loses nothing."""
    monkeypatch.setattr(resuming, "TAIL_SECONDS", 0.1)
    made: list[World] = []

    def make(streams: int = 4, epochs: int = 0) -> World:
        made.append(World(embedded_redis_url, streams, epochs))
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    """A world of four streams, without a leader yet."""
    return make_world()


@pytest.fixture
def start_driver(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """Starts drivers, and kills those that still run."""
    started: list[Driver] = []

    def start(*steps: dict[str, Any], **more: Any) -> Driver:
        started.append(Driver(tmp_path, *steps, **more))
        return started[-1]

    yield start
    for driver in started:
        if driver.process.poll() is None:
            driver.kill()


@pytest.fixture
def start_application(tmp_path: Path) -> Iterator[Callable[..., Application]]:
    """Starts applications, whose runs wait to be started, and kills those that still run."""
    started: list[Application] = []

    def start(name: str, *runs: dict[str, str], **more: Any) -> Application:
        started.append(Application(tmp_path / name, *runs, **more))
        return started[-1]

    yield start
    for application in started:
        if application.process.poll() is None:
            application.kill()


@pytest.fixture
def durable(make_redis_server: MakeServer) -> Iterator[Durable]:
    made = Durable(make_redis_server)
    yield made
    made.close()


@pytest.fixture
def make_shop(embedded_redis_url: str) -> Iterator[Callable[..., Shop]]:
    made: list[Shop] = []

    def make(**options: Any) -> Shop:
        made.append(Shop(embedded_redis_url, **options))
        return made[-1]

    yield make
    for shop in made:
        shop.close()
