"""``python scripts/walk.py [URL]``: the files through which a message, a commit and progress pass.

The message goes from `Publisher.submit` to a row of Spark's micro-batch reader, the commit from
`Batch.commit` to its return. Progress begins with a commit as well, and ends when the leader's answer has
come. Each is run with a leader in this process, and with one on another host: on another event loop, reached
through Redis. The server is a throw-away one unless a URL is given.

What counts: a file of the product of which a function runs, in whichever thread, between the call and the
durable answer, and every Lua script that is sent meanwhile. What a dataclass generates is no function of a
file. All is steady: leases are granted, topics are known, scripts are loaded. Each walk is repeated, and a
file counts if one of its functions ran every time. So timers, which come by now and then, do not count, and
nothing is left out by hand. Behind each file stands how many of its functions ran.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import FrameType
from typing import Any

from streamlease.admin.redis.embedded import EmbeddedRedis
from streamlease.agent.client import Client
from streamlease.agent.loop import LoopThread
from streamlease.borrower.leases import TELL_INTERVAL
from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.spark.options import SourceOptions
from streamlease.spark.source import StreamReader
from streamlease.streams.publish.publisher import Publisher
from streamlease.streams.redis.connection import connect

REPETITIONS = 8
WARM = 2
"""So many of them do not count: something is done there for the first time."""

REST_SECONDS = 0.05
"""Before each repetition, so that nothing of the one before it is under way."""

Walk = dict[str, None]
"""Functions as ``file:function``, in the order in which they first ran."""


class Watch:
    """Which functions of the product run while `watching`; in all threads begun after it was made."""

    def __init__(self) -> None:
        self._walk: Walk | None = None
        sys.setprofile(self._ran)
        threading.setprofile(self._ran)

    def _ran(self, frame: FrameType, event: str, _: Any) -> None:
        walk, name, code = self._walk, frame.f_globals.get("__name__", ""), frame.f_code
        if walk is None or event != "call" or not name.startswith("streamlease."):
            return
        if code.co_name == "<module>" or not code.co_filename.endswith(".py"):
            return
        end = "/__init__.py" if "__path__" in frame.f_globals else ".py"
        file = name.removeprefix("streamlease.").replace(".", "/") + end
        walk[f"{file}:{code.co_qualname}"] = None
        if code.co_qualname == "Call.command":
            room, _, script = frame.f_locals["self"].script.name.removeprefix("streamlease.").partition("/")
            walk[f"{room.replace('.', '/')}/lua/{script}.lua:"] = None

    @contextmanager
    def watching(self) -> Iterator[Walk]:
        """Take down what runs."""
        self._walk = walk = Walk()
        try:
            yield walk
        finally:
            self._walk = None


def common(walks: list[Walk]) -> Walk:
    """What ran every time, in the order of the last time."""
    return {one: None for one in walks[-1] if all(one in other for other in walks[WARM:])}


def listed(title: str, walk: Walk) -> str:
    """The files of these functions, in order, under a title."""
    files = Counter(one.partition(":")[0] for one in walk)
    return "\n".join([f"{title}: {len(files)} files", *(f"  {file}  {files[file]}" for file in files), "\n"])


async def commits(watch: Watch, url: str, group: str, *, told: bool = False) -> Walk:
    """Of `Batch.commit`.

    Args:
        told: and of what the leader learns of it: at once, as it was told nothing for a while.
    """
    rest = REST_SECONDS + told * TELL_INTERVAL / 1000
    walks = []
    async with (
        Client(url) as client,
        client.publisher() as publisher,
        client.subscribe(f"$shared/{group}/walk/#", start="latest") as batches,
    ):
        await publisher.send("walk/first", b"")
        async for batch in batches:
            await asyncio.sleep(rest)
            with watch.watching() as walk:
                await batch.commit()
                while told and not batch.held.lease.is_answered:  # noqa: ASYNC110 - nobody is told
                    await asyncio.sleep(0)
            walks.append(walk)
            if len(walks) == REPETITIONS:
                break
            await publisher.send("walk/next", b"")
    return common(walks)


def messages(watch: Watch, url: str, group: str) -> Walk:
    """Of `Publisher.submit` to a row, with Spark's calls as a micro-batch makes them."""
    walks: list[Walk] = []
    options = {"redis": url, "subscribe": f"$shared/{group}/walk/#", "startingOffsets": "latest"}
    reader = StreamReader(SourceOptions.parse(options))
    limit = reader.getDefaultReadLimit()
    with asyncio.Runner() as runner:
        publisher = runner.run(publisher_of(url))

        async def publish() -> None:
            await (await publisher.submit("walk/row", b""))

        start = reader.initialOffset()

        def cut() -> bool:
            """One micro-batch; whether it had something to read."""
            nonlocal start
            end = reader.latestOffset(start, limit)
            found = any(batch.num_rows for one in reader.partitions(start, end) for batch in reader.read(one))
            reader.commit(end)
            start = end
            return found

        while len(walks) < REPETITIONS:
            cut()  # what was read before went through: that is not this message's way
            time.sleep(REST_SECONDS)
            with watch.watching() as walk:
                runner.run(publish())
                while not cut():
                    pass
            walks.append(walk)
        reader.stop()
        runner.run(publisher.close())
    return common(walks)


async def publisher_of(url: str) -> Publisher:
    """A publisher of this event loop."""
    return Publisher(connect(url))


@contextmanager
def other_host(url: str) -> Iterator[None]:
    """A leader host with an event loop of its own, which shares nothing with others but Redis."""
    thread = LoopThread("another host")

    async def begin() -> LeaderHost:
        host = LeaderHost(connect(url), HostConfig(name="walk"))
        await host.start()
        return host

    host = thread.call(begin())
    try:
        yield
    finally:
        thread.call(host.close())
        thread.stop()


def main() -> None:
    """Print the six walks."""
    watch = Watch()
    with ExitStack() as stack:
        url = sys.argv[1] if sys.argv[1:] else stack.enter_context(EmbeddedRedis.throw_away())
        asyncio.run(create_space(url))
        for place, leader in (("here", nullcontext()), ("on another host", other_host(url))):
            with leader:
                name = place.partition(" ")[0]
                for what, walk in (
                    ("a message", messages(watch, url, f"m-{name}")),
                    ("a commit", asyncio.run(commits(watch, url, f"c-{name}"))),
                    ("progress", asyncio.run(commits(watch, url, f"p-{name}", told=True))),
                ):
                    sys.stdout.write(listed(f"{what}, its leader {place}", walk))


async def create_space(url: str) -> None:
    """One stream, so that each walk is alone."""
    async with Client(url) as client:
        await client.create_space("walk", topics=["walk/#"], streams=1)


if __name__ == "__main__":
    main()
