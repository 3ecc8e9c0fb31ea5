"""The thread that takes spawn jobs outlives a Redis that does not answer."""

from __future__ import annotations

import threading

import pytest
import redis

from streamlease.leader import serve
from streamlease.leader.serve import HostWorker, SpawnJobs
from streamlease.streams.connection import connect_blocking


@pytest.mark.timeout(200)
def test_a_worker_that_loses_redis_is_followed_by_another(
    embedded_redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[str] = []
    again = threading.Event()

    def work(self: HostWorker, **_: object) -> bool:
        began.append(self.name)
        if len(began) == 1:
            raise redis.ConnectionError("Connection closed by server.")
        again.set()
        return True

    monkeypatch.setattr(HostWorker, "work", work)
    monkeypatch.setattr(serve, "AGAIN_SECONDS", 0.01)
    client = connect_blocking(embedded_redis_url)
    assert isinstance(client, redis.Redis)
    jobs = SpawnJobs(client, "h")
    jobs.start()
    try:
        assert again.wait(30)
    finally:
        jobs.stop()
        jobs.join(20)
        client.close()
    assert began[:2] == ["h.1", "h.2"]
