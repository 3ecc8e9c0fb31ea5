"""Page: `streamlease ui` with 10,000 streams that move and progress, in a Chromium; and a host's metrics.

The group's journal is written here as its leader would write it: 20 commits a second, each with the progress
of 100 streams and the move of one. An update is timed from when its commit is durable until
the page in the browser has drawn it. A bystander asks Redis all the while, to see whether the looks of
the page keep others waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import statistics
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from bench.frame import Frame, Table, percentile
from bench.leaders import BORROWERS, LEADERS, STREAMS, borrowers, hosts_of, journal_of
from streamlease.agent.client import connect
from streamlease.leader.core.state.records import Committed, Leased, Record, Released, StreamsAdded
from streamlease.leader.journal import Journal
from streamlease.protocol.topics import SharedSubscription
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.streams.redis.connection import connect as connect_redis

ROWS = 10_000
SPACES = 5
OWNERS = 100
MARKS = 20
COMMITS_A_SECOND = 20
SHARED = SharedSubscription.parse("$shared/page/wide/#")
COMMAND = Path(sys.executable).with_name("streamlease")
SCRAPES = 20
LOADS = 5


PAINTED = """
const paint = performance.getEntriesByName('first-contentful-paint')[0];
return [paint === undefined ? null : paint.startTime, window.filled ?? null];
"""
WATCH = """
const watch = () => {
  const known = window.streamlease?.store.group?.rows?.size ?? 0;
  if (known >= ROWS && document.querySelectorAll('#group tbody tr').length > 0) {
    requestAnimationFrame(() => { window.filled = performance.now(); });
  } else requestAnimationFrame(watch);
};
watch();
"""
SEEN = """
const [stream, owner, done] = arguments;
const look = () => {
  const row = window.streamlease.store.group?.rows?.get(stream);
  if (row !== undefined && row[1] === owner) requestAnimationFrame(() => done(Date.now()));
  else setTimeout(look, 4);
};
look();
"""


def measure(frame: Frame) -> Iterator[Table]:
    """One table of figures and bounds."""
    table = Table("Page and metrics", ("", "measured", "must be"))
    with frame.server() as url:
        table.rows.extend(asyncio.run(_page(url)))
    with frame.server() as url:
        table.rows.extend(asyncio.run(_scrape(url)))
    yield table


# ---------------------------------------------------------------- the page


class _Pretender:
    """Writes the journal of a group of 10,000 streams, as a busy leader would."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._streams = [f"wide{n}.0.{shard}" for n in range(SPACES) for shard in range(ROWS // SPACES)]
        self._lease_epochs = dict.fromkeys(self._streams, 1)
        self._number = 0
        self._one = asyncio.Lock()

    async def begin(self) -> None:
        """All streams are leased."""
        records: list[Record] = [StreamsAdded(starts=dict.fromkeys(self._streams, 0))]
        records += [self._lease(stream, f"owner-{n % OWNERS}") for n, stream in enumerate(self._streams)]
        await self._write(records)

    async def go_on(self) -> None:
        """Commit after commit, until cancelled."""
        while True:
            self._number += 1
            part = [self._streams[(self._number * 100 + n) % ROWS] for n in range(100)]
            moved = self._streams[self._number * 7 % (ROWS - 1)]
            progress = Committed(offsets=dict.fromkeys(part, self._number))
            await self._write([progress, *self._move(moved, f"owner-{self._number % OWNERS}")])
            await asyncio.sleep(1 / COMMITS_A_SECOND)

    async def mark(self, owner: str) -> str:
        """The last stream goes to `owner`; its name."""
        await self._write(self._move(self._streams[-1], owner))
        return self._streams[-1]

    def _move(self, stream: str, owner: str) -> list[Record]:
        before = self._lease_epochs[stream]
        self._lease_epochs[stream] = before + 1
        return [Released(stream=stream, lease_epoch=before), self._lease(stream, owner)]

    def _lease(self, stream: str, owner: str) -> Leased:
        return Leased(stream=stream, lease_epoch=self._lease_epochs[stream], name=owner, session=owner)

    async def _write(self, records: list[Record]) -> None:
        async with self._one:  # a journal takes one commit after the other
            await self._journal.write(self._journal.next_commit(records))


async def _page(url: str) -> list[tuple[str, str, str]]:
    async with connect(url) as client:
        for number in range(SPACES):
            await client.create_space(f"wide{number}", [f"wide/{number}/#"], streams=ROWS // SPACES)
        await client.groups.declare(SHARED, "earliest")
    redis, writing = connect_redis(url), connect_redis(url)
    pretender = _Pretender(await journal_of(writing, SHARED.id, 1))
    await pretender.begin()
    going = asyncio.create_task(pretender.go_on())
    try:
        quiet = await _bystander(redis, 10.0)
        async with console_of(url) as site:
            busy = asyncio.create_task(_bystander(redis, 10.0))
            found = await asyncio.to_thread(_in_browser, site, pretender, asyncio.get_running_loop())
            pings = await busy
            looks = [await asyncio.to_thread(look_at, site) for _ in range(10)]
    finally:
        going.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await going
        await redis.aclose()
        await writing.aclose()
    what = f"page of {ROWS:,} streams"
    updates, drawn, paints, filled = found
    return [
        (f"{what}: its frame painted, median of {LOADS}", f"{statistics.median(paints):.0f} ms", ""),
        (f"{what}: all of them painted, median", f"{statistics.median(filled):.0f} ms", "< 1,000 ms"),
        (f"{what}: from a commit to its being drawn, median", f"{statistics.median(updates):.0f} ms", ""),
        (f"{what}: the slowest of {MARKS}", f"{max(updates):.0f} ms", "< 1,000 ms"),
        (f"{what}: drawing an update, 99th percentile", f"{percentile(drawn, 99):.0f} ms", ""),
        (f"{what}: one look at Redis", f"{statistics.median(looks):.0f} ms", ""),
        ("a bystander's question to Redis, 99th percentile, without page", f"{quiet:.1f} ms", ""),
        ("the same while the page is looked at", f"{pings:.1f} ms", ""),
    ]


async def _bystander(redis: AsyncRedis, seconds: float) -> float:
    """Milliseconds that a question to Redis takes, 99th percentile."""
    times = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        await ask(redis, [("PING",)])
        times.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(0.005)
    return percentile(times, 99)


@contextlib.asynccontextmanager
async def console_of(url: str) -> AsyncIterator[str]:
    """``streamlease ui`` as a process; its address."""
    process = await asyncio.create_subprocess_exec(
        str(COMMAND), "ui", "--http-port", "0", "--redis", url, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        said = (await process.stdout.readline()).decode()
        yield said.partition(" is at ")[2].strip().rstrip("/")
    finally:
        process.terminate()
        await process.wait()


def look_at(site: str) -> float:
    """Milliseconds of a look of the console at Redis."""
    time.sleep(1.0)
    with urllib.request.urlopen(f"{site}/api/overview", timeout=30) as answer:
        return float(json.loads(answer.read())["took_ms"])


def _in_browser(
    site: str, pretender: _Pretender, loop: asyncio.AbstractEventLoop
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Milliseconds from commits to their being drawn, of drawing, until pages are painted, and until full."""
    browser = chromium()
    address = f"{site}/#/group/{urllib.parse.quote(str(SHARED), safe='')}"
    try:
        browser.set_script_timeout(60)
        watch = WATCH.replace("ROWS", str(ROWS))
        browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": watch})
        paints, filled = [], []
        for _ in range(LOADS):
            browser.get("about:blank")
            browser.get(address)
            until = time.monotonic() + 60
            while None in (seen := browser.execute_script(PAINTED)):
                if time.monotonic() > until:
                    raise RuntimeError("the page did not show all streams within 60 s")
                time.sleep(0.05)
            paints.append(seen[0])
            filled.append(seen[1])
        updates = []
        for number in range(MARKS):
            stream = asyncio.run_coroutine_threadsafe(pretender.mark(f"mark-{number}"), loop).result()
            began = time.time() * 1000
            updates.append(browser.execute_async_script(SEEN, stream, f"mark-{number}") - began)
            time.sleep(0.13 * (number % 8))  # so that marks fall between looks anywhere
        return updates, browser.execute_script("return window.streamlease.drawn"), paints, filled
    finally:
        browser.quit()


def chromium() -> Any:
    """A headless Chromium of 1400 x 1100 points; needs the packages chromium and chromium-driver."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        raise SystemExit("bench page needs chromium and chromedriver: install chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1100"):
        options.add_argument(argument)
    options.binary_location = program
    return webdriver.Chrome(options=options, service=Service(driver))


# ---------------------------------------------------------------- metrics of a host


async def _scrape(url: str) -> list[tuple[str, str, str]]:
    """Milliseconds of ``GET /metrics`` of a host that leads many groups with consumers."""
    async with hosts_of(url, 1) as ((_, port),), borrowers(url, LEADERS):
        await asyncio.sleep(5.0)
        times, size = await asyncio.to_thread(_scrapes, port)
    what = f"metrics of a host, {LEADERS} leaders, {STREAMS} streams, {BORROWERS} borrowers each"
    return [
        (f"{what}: median", f"{statistics.median(times):.0f} ms", "< 200 ms"),
        (f"{what}: slowest of {SCRAPES}", f"{max(times):.0f} ms", ""),
        (f"{what}: size", f"{size / 1024:.0f} KiB", ""),
    ]


def _scrapes(port: int) -> tuple[list[float], int]:
    times, size = [], 0
    for _ in range(SCRAPES):
        began = time.perf_counter()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            size = len(answer.read())
        times.append((time.perf_counter() - began) * 1000)
        time.sleep(0.5)
    return times, size
