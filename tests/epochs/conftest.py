"""An empty server on which the streams of a space are open."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from streamlease.hosts.keepers import Keepers
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import AsyncRedis, connect
from tests.epochs.staging import STREAMS


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(redis_url)
    await AsyncLog(client).open(STREAMS)
    yield client
    await client.aclose()


@pytest.fixture
def kept_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """No host keeps a space: each test says when a boundary comes."""

    async def keeps_nothing(self: Keepers) -> None:
        """The claims are nobody's."""

    monkeypatch.setattr(Keepers, "round", keeps_nothing)
