"""Console: 1,000 groups and 10,000 streams on its first page and its list of groups, in a Chromium.

Each group reads a space of its own, of ten streams, all leased; their journals are written here as leaders
would write them, and go on: 20 commits a second, each of another group. A page is timed from its address
until the browser has painted what there is, not the frame around it.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

from bench.frame import Frame, Table, percentile
from bench.leaders import journal_of
from bench.page import chromium, console_of, look_at
from streamlease.agent.client import connect
from streamlease.leader.core.state.records import Committed, Leased, Record, StreamsAdded
from streamlease.leader.journal import Journal
from streamlease.protocol.topics import SharedSubscription
from streamlease.streams.redis.connection import connect as connect_redis

GROUPS, STREAMS = 1000, 10
TOGETHER = 50
"""Spaces and groups that are made at the same time."""

COMMITS_A_SECOND = 20
LOADS = 5
SECONDS = 10.0
"""For so long the drawing of updates is looked at."""

PAGES = {
    "first page": (
        "",
        "[...document.querySelectorAll('#home .figures dd')].some((one) => one.innerText.startsWith(GROUPS))",
    ),
    "list of groups": (
        "groups",
        "document.querySelectorAll('#groups tbody tr').length >= Math.min(200, COUNT)",
    ),
}
WATCH = """
const watch = () => {
  if (SHOWN) requestAnimationFrame(() => { window.filled = performance.now(); });
  else requestAnimationFrame(watch);
};
watch();
"""


def measure(frame: Frame) -> Iterator[Table]:
    """One table of figures and bounds."""
    table = Table("Console", ("", "measured", "must be"))
    with frame.server() as url:
        table.rows.extend(asyncio.run(_console(url)))
    yield table


async def _console(url: str) -> list[tuple[str, str, str]]:
    subscriptions = [SharedSubscription.parse(f"$shared/group{n}/many/{n}/#") for n in range(GROUPS)]
    async with connect(url, embedded=False) as client:

        async def make(number: int) -> None:
            await client.create_space(f"many{number}", [f"many/{number}/#"], streams=STREAMS)
            await client.groups.declare(subscriptions[number], "earliest")

        for begin in range(0, GROUPS, TOGETHER):
            await asyncio.gather(*map(make, range(begin, min(GROUPS, begin + TOGETHER))))
    redis = connect_redis(url)
    going: asyncio.Task[None] | None = None
    try:
        journals = [await journal_of(redis, one.id, 1) for one in subscriptions]
        for number, journal in enumerate(journals):
            await journal.write(journal.next_commit(_begun(number)))
        going = asyncio.create_task(_go_on(journals))
        async with console_of(url) as site:
            found = await asyncio.to_thread(_in_browser, site)
            looks = [await asyncio.to_thread(look_at, site) for _ in range(10)]
    finally:
        if going is not None:
            going.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await going
        await redis.aclose()
    what = f"{GROUPS:,} groups, {GROUPS * STREAMS:,} streams"
    rows = []
    for name, (filled, drawn) in found.items():
        rows += [
            (f"{what}: {name} painted with all figures, median of {LOADS}",
             f"{statistics.median(filled):.0f} ms", "< 1,000 ms"),
            (f"{what}: the same, the slowest", f"{max(filled):.0f} ms", ""),
            (f"{what}: {name}, drawing an update, 99th percentile", f"{percentile(drawn, 99):.0f} ms", ""),
        ]  # fmt: skip
    return [*rows, (f"{what}: one look at Redis", f"{statistics.median(looks):.0f} ms", "")]


def _begun(number: int) -> list[Record]:
    streams = [f"many{number}.0.{shard}" for shard in range(STREAMS)]
    leased = [Leased(stream=one, lease_epoch=1, name=f"owner-{number}", session="s") for one in streams]
    return [StreamsAdded(starts=dict.fromkeys(streams, 0)), *leased]


async def _go_on(journals: Sequence[Journal]) -> None:
    """Commit after commit, until cancelled."""
    number = 0
    while True:
        number += 1
        group = number * 7 % len(journals)
        progress = Committed(offsets={f"many{group}.0.0": number})
        await journals[group].write(journals[group].next_commit([progress]))
        await asyncio.sleep(1 / COMMITS_A_SECOND)


def _in_browser(site: str) -> dict[str, tuple[list[float], list[float]]]:
    """Of each page the milliseconds until it was painted, and of drawing an update."""
    browser = chromium()
    found = {}
    try:
        for name, (address, shown) in PAGES.items():
            condition = shown.replace("GROUPS", repr(f"{GROUPS:,}")).replace("COUNT", str(GROUPS))
            source = {"source": WATCH.replace("SHOWN", condition)}
            watch = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", source)
            filled = [_painted(browser, f"{site}/#/{address}") for _ in range(LOADS)]
            time.sleep(SECONDS)
            found[name] = filled, browser.execute_script("return window.streamlease.drawn")
            browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", watch)
    finally:
        browser.quit()
    return found


def _painted(browser: Any, address: str) -> float:
    browser.get("about:blank")
    browser.get(address)
    until = time.monotonic() + 60
    while (seen := browser.execute_script("return window.filled ?? null")) is None:
        if time.monotonic() > until:
            raise RuntimeError(f"{address} did not show all groups within 60 s")
        time.sleep(0.05)
    return float(seen)
