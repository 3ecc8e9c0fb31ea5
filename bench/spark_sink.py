"""The Spark sink beside ``foreachBatch`` with pipelined single XADD: throughput of one task."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import redis

from bench.frame import Frame, Table, clear
from bench.messages import PAYLOAD_BYTES, SPACE
from bench.sparks import ROWS, session
from streamlease.agent import blocking

STREAMS = 4
PIPELINE = 1000
FEWER = 10
"""``foreachBatch`` writes so many times fewer messages: it would need minutes."""

BASE = "foreachBatch, pipelined XADD"


def xadd(url: str, rows: Iterable[Any]) -> None:
    """Write the rows of one partition, one entry each."""
    with redis.Redis.from_url(url) as client:
        pipeline = client.pipeline(transaction=False)
        for row in rows:
            pipeline.xadd("bench:plain", {"t": row.topic, "k": bytes(row.key), "p": bytes(row.payload)})
            if len(pipeline) == PIPELINE:
                pipeline.execute()
        pipeline.execute()


def written(url: str) -> int:
    """How many messages are in all streams."""
    with redis.Redis.from_url(url) as client:
        metas = [*client.scan_iter("sl:*:meta", 1000)]
        return sum(int(client.hget(meta, "next") or 0) for meta in metas) + client.xlen("bench:plain")


def measure(frame: Frame) -> Iterator[Table]:
    """Messages per second, with one core, from a warm Java; the time is that of Spark's ``addBatch``."""
    with frame.server() as url, session(1) as spark, TemporaryDirectory() as folder:
        number = 0

        def run(name: str, count: int, codec: str = "") -> float:
            nonlocal number
            number += 1
            clear(url)
            with blocking.connect(url) as client:
                client.create_space(SPACE, [f"{SPACE}/#"], streams=STREAMS)
            size = {"rows": str(count), "batch": str(ROWS)}
            rows = spark.readStream.format("memory_source").options(**size).load()
            writer = rows.select("topic", "key", "payload").writeStream
            if codec:
                writer = writer.format("streamlease").options(redis=url, compression=codec)
            else:
                writer = writer.foreachBatch(
                    lambda batch, _: batch.foreachPartition(lambda part: xadd(url, part))
                )
            place = str(Path(folder) / str(number))
            query = writer.option("checkpointLocation", place).trigger(availableNow=True).start()
            query.awaitTermination()
            there = written(url)
            if there != count:
                raise SystemExit(f"{name}: {there} of {count} messages")
            return count / (sum(one["durationMs"].get("addBatch", 0) for one in query.recentProgress) / 1000)

        few = max(1, frame.messages // FEWER)
        found: dict[str, list[float]] = {}
        for turn in range(frame.runs + 1):
            for name, count, codec in (
                (BASE, few, ""),
                ("Streamlease, lz4", frame.messages, "lz4"),
                ("Streamlease, zstd", frame.messages, "zstd"),
            ):
                rate = run(name, count, codec)
                if turn:
                    found.setdefault(name, []).append(rate)
    rates = {name: statistics.median(rates) for name, rates in found.items()}
    title = f"One task writes {frame.messages:,} messages of {PAYLOAD_BYTES} bytes, median of {frame.runs}"
    table = Table(title, ("", "messages/s", "times foreachBatch"))
    for name, rate in rates.items():
        table.rows.append((name, f"{rate:,.0f}", f"{rate / rates[BASE]:.1f}"))
    yield table
