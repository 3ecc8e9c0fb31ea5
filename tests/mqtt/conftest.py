"""Brokers, and bridges as processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mqtt.bridges import Bridges
from tests.mqtt.broker import Broker
from tests.servers import ServerMissing

MakeBroker = Callable[..., Broker]


@pytest.fixture
def make_broker(tmp_path: Path) -> Iterator[MakeBroker]:
    """Makes started brokers of the test's own."""
    made: list[Broker] = []

    def make(*settings: str, scheme: str = "mqtt", careful: bool = False) -> Broker:
        directory = tmp_path / f"broker-{len(made)}"
        made.append(Broker(directory, *settings, scheme=scheme, careful=careful))
        try:
            return made[-1].start()
        except ServerMissing as missing:
            pytest.fail(str(missing), pytrace=False)

    yield make
    for broker in made:
        broker.stop()


@pytest.fixture
def broker(make_broker: MakeBroker) -> Broker:
    return make_broker()


@pytest.fixture
def bridges(tmp_path: Path, embedded_redis_url: str) -> Iterator[Bridges]:
    """Makes bridges on an empty Redis, and ends them."""
    made = Bridges(tmp_path, embedded_redis_url)
    yield made
    made.end()
