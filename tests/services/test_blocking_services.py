"""Services with the blocking client: handlers run on its event loop, calls may come from any thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from streamlease.agent import blocking
from streamlease.protocol.errors import InvalidInput, NoService, ServiceError
from tests.services.models import Score, Scored, TooHigh, score


def test_a_blocking_program_serves_and_calls(redis_url: str) -> None:
    with blocking.connect(redis_url) as server, blocking.connect(redis_url) as caller:
        with server.serve("scorer", {Score: score}, errors={Score: TooHigh}):
            assert caller.call("scorer", Score(x=3), answer=Scored, wait=5).y == 1.5
            with pytest.raises(ServiceError) as caught:
                caller.call("scorer", Score(x=2000), answer=Scored, error=TooHigh)
            assert caught.value.error == TooHigh(highest=1000)
            with ThreadPoolExecutor(8) as threads:
                answers = threads.map(
                    lambda x: caller.call("scorer", Score(x=x), answer=Scored).y, range(200)
                )
                assert [*answers] == [x / 2 for x in range(200)]
        with pytest.raises(NoService):
            caller.call("scorer", Score(x=3), answer=Scored)


def test_what_is_no_service_is_said_at_once(embedded_redis_url: str) -> None:
    with blocking.connect(embedded_redis_url) as client:
        with pytest.raises(InvalidInput, match="has no handlers"):
            client.serve("scorer", {})
        serving = client.serve("scorer", {Score: score})
        with serving:
            serving.close()
        serving.close()
