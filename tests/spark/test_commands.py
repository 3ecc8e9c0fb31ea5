"""Which streams the commands of micro-batches name, seen by Redis itself: those with news, and no other."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import redis

from streamlease.streams.log import tails as tails_module
from streamlease.streams.log.tails import Tails
from tests.spark.world import Query, World, wait_for

OF_A_STREAM = re.compile(r"sl:\{(s\.0\.[0-9]+)\}:(?:log|meta)")
IDLE = 5


@contextmanager
def seen(url: str) -> Iterator[Counter[str]]:
    """Streams that clients' commands name between beginning and end; the counts are there at the end."""
    found: Counter[str] = Counter()
    with redis.Redis.from_url(url) as client, redis.Redis.from_url(url) as other, client.monitor() as monitor:

        def watch() -> None:
            while (told := monitor.next_command())["command"] != "ECHO the end":
                if told["client_type"] != "lua" and (named := OF_A_STREAM.search(told["command"])):
                    found[named[1]] += 1

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        yield found
        other.echo("the end")
        thread.join(60.0)
        assert not thread.is_alive()


def has_lag(one: Query, lag: int) -> bool:
    return bool(one.reader.reportLatestOffset()["lag"] == lag)


@pytest.mark.parametrize("streams", [10, 100])
@pytest.mark.parametrize("limit", [{}, {"maxBytesPerTrigger": 1_000_000}], ids=["no limit", "bytes"])
@pytest.mark.slow
def test_a_micro_batch_names_only_streams_with_news(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, streams: int, limit: dict[str, Any]
) -> None:
    # What is polled besides is so much a second, whatever the micro-batches do.
    monkeypatch.setattr(tails_module, "Tails", partial(Tails, poll_interval=3600.0))
    world = make_world(streams)
    world.lead()
    one = world.query(**limit)
    one.run(lambda: len(one.held) == streams)
    world.publish(1)
    one.run(lambda: len(one.checkpoint.rows) == world.total, 60.0)
    for changed in (world.streams[:3], world.streams[5:6]):
        one.run(lambda: world.all_committed, 60.0)
        world.publish(dict.fromkeys(changed, 2))
        wait_for(partial(has_lag, one, 2 * len(changed)), 60.0)
        with seen(world.url) as found:
            one.run(lambda: len(one.checkpoint.rows) == world.total, 60.0)
            for _ in range(IDLE):
                assert not one.trigger()
        # A task asks for what a stream is and for its entries; a limit of bytes asks for its size.
        assert found == dict.fromkeys(changed, 3 if limit else 2)
    world.check(one.checkpoint)
