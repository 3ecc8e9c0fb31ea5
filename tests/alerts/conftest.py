"""A Prometheus for the tests of one file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.alerts.prometheus import Prometheus
from tests.servers import ServerMissing


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    try:
        running = Prometheus(tmp_path_factory.mktemp("prometheus")).__enter__()
    except ServerMissing as missing:
        pytest.fail(str(missing), pytrace=False)
    yield running
    running.__exit__()
