"""The sink in real Spark: rows, columns, refusals, repeated batches, and chained jobs that are killed."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamlease.agent.client import Client
from streamlease.streams.entries.delivered import Message, to_messages
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import connect
from streamlease.streams.spaces.spaces import SpaceStore
from tests.spark.programs import HERE, Program, run_program

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SIMPLE = {
    "tiny": "int8",
    "small": "int16",
    "medium": "int32",
    "single": "float32",
    "double": "float64",
    "flag": "bool",
    "bytes": "binary",
    "day": "date",
    "naive": "timestamp[us]",
}
IN_SPARK = {
    "number": "bigint",
    "moment": "timestamp",
    "price": "decimal(12,2)",
    "list": "array<bigint>",
    "nested": "struct<a:string>",
    "more": "string",
    "tiny": "tinyint",
    "small": "smallint",
    "medium": "int",
    "single": "float",
    "double": "double",
    "flag": "boolean",
    "bytes": "binary",
    "day": "date",
    "naive": "timestamp_ntz",
}
TYPED = {
    "columns": [
        {"name": "number", "type": "int64", "nullable": False},
        {"name": "moment", "type": "timestamp[us, UTC]"},
        {"name": "price", "type": "decimal(12, 2)"},
        {"name": "list", "type": "list<int64>"},
        {"name": "nested", "type": "struct<a: string>"},
        {"name": "more", "type": "string"},
        *[{"name": name, "type": type} for name, type in SIMPLE.items()],
    ]
}

REFUSED = {
    "no topic": "InvalidInput: the columns payload have no topic: add a column 'topic', or",
    "null topic": "InvalidInput: column topic of the batch has 1 nulls: each message needs one",
    "unknown option": "InvalidOption: option 'topics' is unknown: did you mean 'topic'?",
}


REFUSED_READS = {
    "batch beyond": "InvalidOption: option 'startingOffsets' has offset 9999 for stream plain.0.",
    "batch unknown": "InvalidOption: option 'endingOffsets' names 'plain.0.9', which is no stream",
    "batch space": "UnknownSpace: no space has topics that match the filter 'nowhere/#'",
    "stream space": "UnknownSpace: no space has topics that match the filter 'nowhere/#'",
    "no redis": "StoreUnavailable: Redis at 127.0.0.1:1 ",
    "stream beyond": "InvalidOption: option 'startingOffsets' has offset 9999 for stream plain.0.",
}

STEPS = ["batch", "typed", "read", "refusals", "choices", "stream"]


async def content(url: str, space: str) -> list[Message]:
    """All messages of a space, stream by stream."""
    async with connect(url) as redis:
        found: list[Message] = []
        for stream in (await SpaceStore(redis).get(space)).streams():
            batches: list[pa.RecordBatch] = await AsyncLog(redis).read(stream, 0)
            for batch in batches:
                found += to_messages(batch)
        return found


async def test_rows_columns_refusals_and_repeated_batches(embedded_redis_url: str, tmp_path: Path) -> None:
    url = embedded_redis_url
    async with Client(url, embedded=False) as client:
        await client.create_space("plain", ["plain/#"], streams=3, shard_by="key")
        await client.create_space("lines", ["lines/#"], streams=3)
        await client.create_space("parts", ["parts/#"], streams=2)
        await client.create_space("inserted", ["inserted/#"])
        await client.create_space("typed", ["typed/#"], streams=2, schema=TYPED)
    steps = {"redis": url, "folder": str(tmp_path), "steps": STEPS}
    told = run_program(HERE / "sink_program.py", tmp_path, steps)

    parts = [(m.topic, int(m.payload)) for m in await content(url, "parts")]
    numbers = {f"parts/perWorker.{worker}": [*range(10 * worker, 10 * worker + 10)] for worker in range(3)}
    numbers["parts/merge"] = [*range(30)]  # one topic, in the order of the partitions
    assert {one: [n for topic, n in parts if topic == one] for one, _ in parts} == numbers

    inserted = [(m.topic, m.payload) for m in await content(url, "inserted")]
    assert sorted(inserted) == [("inserted/sql", b"%d" % number) for number in range(5)]

    plain = await content(url, "plain")
    assert sorted(m.payload for m in plain if m.topic == "plain/fixed") == [b"one", b"two"]
    rows = {int(m.payload.split()[1]): m for m in plain if m.topic != "plain/fixed"}
    assert len(plain) == 302
    assert sorted(rows) == list(range(300))
    for number, message in rows.items():
        assert message.topic == f"plain/{number % 7}"
        assert message.key == (None if number % 2 else b"%d" % number)
        assert message.headers == (() if number % 3 else (("h", b"x"),))
        moment = datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=UTC) + timedelta(seconds=number)
        assert message.timestamp == moment

    typed = [message.values or {} for message in await content(url, "typed")]
    assert sorted(values["number"] for values in typed) == list(range(100))
    for values in typed:
        number = values["number"]
        assert values["moment"] == datetime(2024, 2, 29, 12, 30, 15, 500000, tzinfo=UTC)
        assert (values["price"], values["list"]) == (Decimal(number), [number])
        assert (values["nested"], values["more"]) == ({"a": str(number)}, None)
        assert [values[name] for name in SIMPLE] == [
            number,
            number,
            number,
            number / 2,
            number / 4,
            number % 2 == 0,
            b"%d" % number,
            date(2024, 2, 29),
            datetime(2024, 2, 29, 12, 30, 15, 500000),
        ]

    check_reads(next(line["gave"] for line in told if line.get("step") == "read"), plain)
    refused = next(line["gave"] for line in told if line.get("step") == "refusals")
    assert refused.keys() == REFUSED.keys()
    for name, part in REFUSED.items():
        assert part in refused[name], (name, refused[name])

    chosen = next(line["gave"] for line in told if line.get("step") == "choices")
    check_choices(chosen, plain)
    assert chosen["refused"].keys() == REFUSED_READS.keys()
    for name, part in REFUSED_READS.items():
        assert part in chosen["refused"][name], (name, chosen["refused"][name])

    # The last batch was written twice, the second time from other partitions.
    first, repeated = next(line for line in told if "batch" in line), told[-1]["gave"]
    assert first["batch"] == repeated["batch"] == 2
    lines = Counter(message.payload.decode() for message in await content(url, "lines"))
    assert lines == Counter(f"{file} {n}" for file in range(3) for n in range(200))
    async with connect(url) as redis:
        assert await redis.keys("*:staged*") == []  # type: ignore[union-attr]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Starts jobs of the chain, and kills those that still run."""
    started: list[Program] = []

    def begin(**arguments: Any) -> Program:
        started.append(Program(HERE / "chain_program.py", tmp_path, arguments))
        return started[-1]

    yield begin
    for program in started:
        if program.process.poll() is None:
            program.kill()


def check_reads(read: dict[str, Any], plain: list[Message]) -> None:
    """The batch reader, also by SQL, and the stream reader gave what was written."""
    assert ["payload", "binary"] in read["columns"]
    assert read["partitions"] >= 3
    third = [
        [m.stream, m.offset, m.payload.decode()] for m in plain if m.topic == "plain/3" and m.offset >= 5
    ]
    threes, fours = ([m.offset % 2 for m in plain if m.topic == f"plain/{n}"] for n in (3, 4))
    for pushed in ("false", "true"):
        assert read["filtered"][pushed] == {
            "one": sorted(third),
            "union": len(threes) + len(fours),
            "join": sum(threes.count(one) * fours.count(one) for one in (0, 1)),
            "whole": len(plain),
        }
    sql = read["sql"]
    assert sql["view"] == sql["inferred"] == sql["given"] == [len(plain)] * 2
    assert "option 'subscribe' is missing" in sql["unsaid"]
    assert "WITH (subscribe='...')" in sql["unsaid"]
    assert "option 'subscribed' is unknown: did you mean 'subscribe'?" in sql["unknown"]
    assert dict(read["typed columns"]) == IN_SPARK
    assert read["typed"] == [4950, "4950.00", 100]
    assert read["pruned"] == [4950]
    assert read["as streamed"] == [True, 0]
    assert read["rows"] == [100, 100]


def check_choices(chosen: dict[str, Any], plain: list[Message]) -> None:
    """What was read is what options and filters leave, and Spark's JVM did not get the rest."""
    assert chosen["narrowed"] == sum(message.topic in ("plain/3", "plain/fixed") for message in plain)
    assert chosen["streams"] == sum(message.stream in ("plain.0.0", "plain.0.2") for message in plain)
    assert chosen["before"] + chosen["after"] == len(plain)
    assert 0 < chosen["after"] < len(plain)
    assert (chosen["without the last"], chosen["only the last"]) == (len(plain) - 3, 3)
    # The trigger `once` makes one batch of all there is, whatever the limits; it has the batch reader's rows.
    assert chosen["once"] == [0, len(plain)]
    assert chosen["as streamed"] == [0, 0]
    assert chosen["tasks"] >= 6


def commits(folder: Path, job: str) -> int:
    """How many micro-batches of a job are done."""
    return len([*(folder / job / "checkpoint" / "commits").glob("[0-9]*")])


def beyond(folder: Path, job: str, batches: int) -> bool:
    return commits(folder, job) > batches


async def test_chained_jobs_killed_at_any_moment_deliver_each_message_once(
    embedded_redis_url: str, tmp_path: Path, start: Callable[..., Program]
) -> None:
    url, moments = embedded_redis_url, random.Random(5)
    expected: Counter[str] = Counter()

    async def publish(count: int) -> None:
        async with Client(url, embedded=False) as client, client.publisher() as publisher:
            for _ in range(count):
                number = expected.total()
                await publisher.submit(f"in/{number % 5}", b"%d" % number)
                expected[f"out/{number % 5} seen {number}"] += 1

    async with Client(url, embedded=False) as client:
        await client.create_space("in", ["in/#"], streams=2)
        await client.create_space("out", ["out/#"], streams=3)
    arguments = {"redis": url, "folder": str(tmp_path)}
    await publish(200)
    jobs = start(partitions=1, once=False, **arguments)
    for job in ("first", "second"):
        jobs.wait_for(partial(beyond, tmp_path, job, 0))
    await publish(400)
    jobs.wait_for(partial(_passed, time.monotonic() + moments.uniform(0.2, 1.5)))
    jobs.kill()
    await publish(50)
    run_program(HERE / "chain_program.py", tmp_path, {"partitions": 3, "once": True, **arguments})
    # Spark reads a folder that a query wrote through its log: only what is in there counts.
    delivered = _delivered(tmp_path / "second" / "rows")
    assert delivered == expected


def _passed(moment: float) -> bool:
    return time.monotonic() >= moment


def _delivered(folder: Path) -> Counter[str]:
    files: set[str] = set()
    for log in (folder / "_spark_metadata").glob("[0-9]*"):
        for line in log.read_text().splitlines()[1:]:
            files.add(json.loads(line)["path"].rpartition("/")[2])
    found: Counter[str] = Counter()
    for name in files:
        table = pq.read_table(folder / name, columns=["topic", "payload"]).to_pylist()
        found.update(f"{row['topic']} {row['payload'].decode()}" for row in table)
    return found
