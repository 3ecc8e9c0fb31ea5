"""The flights in the air, as a collection: a departure adds an item, and the landing takes it away.

``python -m streamlease.examples.flights_in_the_air redis://127.0.0.1:6379 3`` makes the space ``air``,
publishes the flights of the first three days of 2013 from New York, and shows how many of each airport are in
the air. An epoch is ten minutes: what happens in these is seen together, or not at all.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import NamedTuple

import streamlease
from streamlease.admin.demo.flights import event_time, load
from streamlease.agent.client import Client
from streamlease.examples.command_line import URL, Argument, start
from streamlease.streams.collections.core.multiset import Item

BEGIN = datetime(2013, 1, 1, tzinfo=UTC)
HOUR = 60
EPOCH = 10


class Flight(NamedTuple):
    """One flight that took place. The minutes are counted from `BEGIN`."""

    name: str
    origin: str
    dest: str
    departs: int
    lands: int

    @property
    def topic(self) -> str:
        return f"air/{self.origin}"


def flights(days: int) -> Iterator[Flight]:
    """Those that departed in the first days: the airline's time of departure, and the minutes in the air."""
    columns = ["carrier", "flight", "origin", "dest", "dep_delay", "air_time", "minute", "time_hour"]
    for row in load(columns).table.to_pylist():
        if row["dep_delay"] is None or row["air_time"] is None:
            continue  # cancelled, or diverted
        hour = (event_time(row["time_hour"]) - BEGIN) // timedelta(minutes=1)
        departs = int(hour + row["minute"] + row["dep_delay"])
        if departs < 24 * HOUR * days:
            name = f"{row['carrier']}{row['flight']}"
            yield Flight(name, row["origin"], row["dest"], departs, departs + int(row["air_time"]))


async def publish(client: Client, days: int) -> AsyncIterator[int]:
    """Publish what happens, in time order; yields the minute at the end of each hour, and of all."""
    changes = [(one.departs, one, +1) for one in flights(days)]
    changes += [(one.lands, one, -1) for one in flights(days)]
    changes.sort(key=lambda change: change[0])
    await client.create_space("air", ["air/#"], streams=2, epochs=1, collection=True)
    async with client.epoch_publisher("air", "tower") as tower:
        for hour, in_hour in groupby(changes, key=lambda change: change[0] // HOUR):
            for epoch, now in groupby(in_hour, key=lambda change: change[0] // EPOCH):
                _, some, diffs = zip(*now, strict=True)
                await tower.submit_many(
                    [one.topic for one in some],
                    [one.dest.encode() for one in some],
                    keys=[one.name for one in some],
                    diffs=diffs,
                    epoch=EPOCH * epoch,
                )
            await tower.advance(HOUR * (hour + 1))
            yield HOUR * (hour + 1)


async def watch(client: Client) -> AsyncIterator[tuple[int, dict[str, int]]]:
    """How many flights of each airport are in the air, and which minute is the first that is not in that."""
    async with client.collection("air/#") as air:
        counts, at = Counter(counted(air.items)), air.frontier
        yield minute_of(at), dict(counts)
        async for change in air:
            if air.frontier != at:  # this change is the first one behind it
                at = air.frontier
                yield minute_of(at), dict(counts)
            counts[change.topic] += change.diff


def counted(items: Mapping[Item, int]) -> dict[str, int]:
    """How many items there are, by topic."""
    counts: Counter[str] = Counter()
    for (topic, _, _), count in items.items():
        counts[topic] += count
    return dict(sorted(counts.items()))


def minute_of(frontier: list[tuple[int, ...]] | None) -> int:
    """The first minute that is not complete."""
    ((minute,),) = frontier or [(0,)]
    return minute


async def seen_at(client: Client, minute: int) -> dict[str, int]:
    """How many flights of each airport are in the air, once all that happened before `minute` is complete."""
    while True:
        async with client.collection("air/#") as air:
            if minute_of(air.frontier) >= minute:
                return counted(air.items)
        await asyncio.sleep(0.05)


async def main(url: str, days: int) -> None:
    """Publish all, and show every six hours what is in the air."""
    async with streamlease.connect(url) as client:
        async for minute in publish(client, days):
            if minute % (6 * HOUR) == 0:
                shown = ", ".join(f"{topic[4:]} {n}" for topic, n in (await seen_at(client, minute)).items())
                sys.stdout.write(f"{BEGIN + timedelta(minutes=minute):%d %b %H:%M}  {shown}\n")


if __name__ == "__main__":
    days = Argument("DAYS", "how many of 2013, such as 3", int)
    start(lambda url, days: asyncio.run(main(url, days)), URL, days)
