"""The source in real Spark: every row and column, options, progress, and drivers that are killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark
import pytest

from streamlease.agent.client import Client
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import leadership
from streamlease.spark.setup.spark_metrics import UNKNOWN, gauges_of
from streamlease.spark.setup.unpacking import PACKED, default_zip
from streamlease.streams.redis.connection import connect
from tests.spark.drivers import Driver, run
from tests.spark.world import SUBSCRIPTION, World, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

WHEN = datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=UTC)


def options(url: str, subscription: str, **more: Any) -> dict[str, str]:
    named = {"redis": url, "subscribe": subscription, "startingOffsets": "earliest"}
    return named | {name: str(value) for name, value in more.items()}


async def publish_flights(url: str) -> None:
    async with Client(url, embedded=False) as client:
        await client.create_space("flights", ["flights/#"], streams=3)
        async with client.publisher() as publisher:
            for number in range(300):
                await publisher.submit(
                    f"flights/{'JFK' if number % 2 else 'LGA'}/{('LAX', 'SFO', 'BOS')[number % 3]}",
                    b"flight %d" % number,
                    key=None if number % 5 else b"N%d" % number,
                    headers={"carrier": b"AA", "number": b"%d" % number} if number % 7 == 0 else None,
                    timestamp=WHEN if number % 2 else None,
                )


def check_flights(out: Path) -> None:
    """Exactly the flights to LAX, each stream in order, every column right."""
    rows = [row for file in sorted(out.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]
    numbers = [int(row["payload"].split()[1]) for row in rows]
    assert sorted(numbers) == list(range(0, 300, 3))
    for file in out.glob("*.parquet"):
        table = pq.read_table(file)
        for stream in set(table["stream"].to_pylist()):
            mine = [row["offset"] for row in table.to_pylist() if row["stream"] == stream]
            assert mine == sorted(mine)
    positions = {(row["stream"], row["offset"]) for row in rows}
    assert len(positions) == len(rows)
    for row, number in zip(rows, numbers, strict=True):
        assert row["topic"] == f"flights/{'JFK' if number % 2 else 'LGA'}/LAX"
        assert row["key"] == (None if number % 5 else b"N%d" % number)
        headers = [(pair["key"], pair["value"]) for pair in row["headers"] or ()]
        assert headers == ([("carrier", b"AA"), ("number", b"%d" % number)] if number % 7 == 0 else [])
        assert row["stream"].startswith("flights.0.")
        appended = row["append_timestamp"]
        assert appended.replace(tzinfo=UTC).year >= WHEN.year
        wanted = WHEN if number % 2 else appended
        assert row["timestamp"].replace(tzinfo=UTC) == wanted.replace(tzinfo=UTC)
        assert row["epoch"] is None


COLUMNS = [
    ["topic", "string"],
    ["key", "binary"],
    ["payload", "binary"],
    ["headers", "array<struct<key:string,value:binary>>"],
    ["stream", "string"],
    ["offset", "bigint"],
    ["timestamp", "timestamp"],
    ["append_timestamp", "timestamp"],
    ["epoch", "array<bigint>"],
]


def make_wheel(folder: Path) -> Path:
    """The project as it is installed by a user: a built wheel, unpacked into a folder."""
    source = folder / "source"
    left_out = shutil.ignore_patterns(
        ".*", "tests", "bench", "docs", "helm", "build", "*.egg-info", "__pycache__"
    )
    shutil.copytree(ROOT, source, symlinks=True, ignore=left_out)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    here = ["--no-build-isolation"] if int(version("setuptools").partition(".")[0]) >= 80 else []
    subprocess.run([*pip, "wheel", "--no-deps", *here, "-w", str(folder), str(source)], check=True)
    (wheel,) = folder.glob("streamlease-*.whl")
    target = folder / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def make_spark_home(folder: Path) -> Path:
    """A Spark as pip installs it, with PySpark in a zip file, out of which `run.py` makes a folder."""
    lib = folder / "python" / "lib"
    lib.mkdir(parents=True)
    for there in Path(pyspark.__file__).parent.iterdir():
        if there.name != "python":
            (folder / there.name).symlink_to(there)
    zip = default_zip()
    packed = zip.with_name(zip.name + PACKED)
    (lib / zip.name).symlink_to(packed if packed.is_file() else zip)
    for there in zip.parent.glob("py4j*"):
        (lib / there.name).symlink_to(there)
    return folder


async def leader_of(url: str, subscription: str) -> leadership.LeaderRecord:
    async with connect(url) as redis:
        return await leadership.read(redis, SharedSubscription.parse(subscription).id)


async def test_an_installed_wheel_is_found_and_gives_rows_columns_errors_and_progress(
    embedded_redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_spark_home(tmp_path / "spark")
    zip = home / "python/lib/pyspark.zip"
    monkeypatch.setenv("SPARK_HOME", str(home))
    target = make_wheel(tmp_path)
    await publish_flights(embedded_redis_url)
    good = options(embedded_redis_url, "$shared/g/flights/+/LAX")
    out, again = tmp_path / "out", tmp_path / "again"
    where, unknown, malformed, once, failed, twice, late, shown, started, told = run(
        tmp_path,
        {"do": "where"},
        {"do": "refused", "options": {**good, "startingOffset": "earliest"}},
        {"do": "refused", "options": {**good, "subscribe": "flights/+/LAX"}},
        {"do": "once", "options": good, "checkpoint": str(tmp_path / "c1"), "out": str(out)},
        {
            "do": "fails_first",
            "options": options(embedded_redis_url, "$shared/f/flights/#"),
            "checkpoint": str(tmp_path / "c3"),
        },
        {"do": "twice", "options": options(embedded_redis_url, ""), "rows": 300},
        {
            "do": "late",
            "options": options(embedded_redis_url, "$shared/late/flights/#", maxOffsetsPerTrigger=30),
            "checkpoint": str(tmp_path / "c4"),
            "rows": 300,
        },
        {
            "do": "told",
            "options": options(embedded_redis_url, "$shared/ui/flights/#", maxOffsetsPerTrigger=100),
        },
        {
            "do": "always",
            "options": options(embedded_redis_url, "$shared/h/flights/#", maxOffsetsPerTrigger=100),
            "checkpoint": str(tmp_path / "c2"),
            "out": str(again),
            "until_read": True,
        },
        path=target,
        settings={"spark.ui.enabled": "true", "spark.ui.port": "0"},
    )
    assert Path(where.pop("tasks")).is_relative_to(zip) and zip.is_file()
    assert all(Path(file).is_relative_to(target) for file in where.values())
    assert any(
        "InvalidOption: option 'startingoffset' is unknown: did you mean 'startingOffsets'? the options are"
        in line
        and "subscribe" in line
        for line in unknown.splitlines()
    ), unknown
    assert any(
        "InvalidTopic: 'flights/+/LAX' is not a shared subscription: write '$shared/GROUP/FILTER'" in line
        for line in malformed.splitlines()
    ), malformed
    assert once["columns"] == COLUMNS
    check_flights(out)
    # Spark ends the process of a reader by a signal; the leader in it has resigned nevertheless.
    assert not (await leader_of(embedded_redis_url, "$shared/g/flights/+/LAX")).held
    assert [f"this sink failed {time} times" in error for time, error in enumerate(failed["errors"], 1)] == [
        True
    ] * 3
    first = failed["seen"][0]  # empty if Spark asked before any stream was granted
    assert first[0] == 0 and failed["seen"][:4] == [first] * 4, "a batch that failed comes again as it was"
    assert sum(rows for _, rows in failed["seen"][3:]) == 300
    for name in ("join", "loads"):
        # Two readers of one query would divide the messages of the group between them.
        said = f"InvalidOption: option 'subscribe' names group '{name}/flights/#' in two readers of one query"
        assert any(said in line for line in (twice[name] or "").splitlines()), twice[name]
    assert twice["union"] == [[600, 300]]
    assert twice["queries"] == 300
    # The checkpoint was behind; what went through the sink before, but for the last micro-batch, came once.
    assert late[0]["logged"] < late[0]["batches"]
    assert 300 <= late[0]["rows"] + late[1]["rows"] <= 330
    assert sum(shown["rows"]) == 300 and len(shown["rows"]) > 2
    said_before = [report["said"] for report in shown["reported"][:-1]]
    assert any("messages behind" in words for words in said_before), said_before
    for page in shown["pages"].values():
        assert [words for words in said_before if words not in page] == []
        assert "flights to" in page, "what Spark says of a micro-batch stays"
    check_metrics(shown)
    assert started == {"started": True}
    assert told["progress"]["held"] == 3
    assert sum(told["progress"]["streams"].values()) == 300
    assert told["progress"]["lag"] == 0
    assert told["behind"] is not None
    assert 0 < told["behind"]["lag"] <= 300


def check_metrics(shown: dict[str, Any]) -> None:
    """While the query ran, its gauges were those of one of its progresses; since then nothing is known."""
    query = "flights to <LAX>"
    (during,) = shown["during"]
    told = [
        {f"{query}.{name}": number for name, number in gauges_of([json.dumps(report)]).items()}
        for report in shown["reported"]
    ]
    assert during in told, (during, told)
    assert during[f"{query}.held"] == 3 and during[f"{query}.lag"] >= 100
    assert shown["after"] == dict.fromkeys(during, UNKNOWN)


def batches(out: Path) -> int:
    """The newest batch that the file sink has."""
    names = [path.name.partition(".")[0] for path in (out / "_spark_metadata").glob("[0-9]*")]
    return max((int(name) for name in names), default=-1)


def reached(out: Path, batch: int) -> bool:
    return batches(out) >= batch


def test_workers_and_drivers_killed_at_any_moment_leave_every_message_once_in_a_file_sink(
    world: World, tmp_path: Path, start_driver: Callable[..., Driver]
) -> None:
    moments = random.Random(20)
    out = tmp_path / "out"
    step = {
        "options": options(world.url, str(SUBSCRIPTION), maxOffsetsPerTrigger=40),
        "checkpoint": str(tmp_path / "checkpoint"),
        "out": str(out),
    }
    world.publish(50)
    for _ in range(2):
        driver = start_driver({"do": "always", **step}, master="local[2,8]")  # so often a task may fail
        wanted = batches(out) + 1
        world.publish(6)
        driver.wait_for(partial(reached, out, wanted))
        driver.wait_for(lambda driver=driver: bool(driver.workers()))  # type: ignore[misc]
        for pid in driver.workers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for _ in range(moments.randint(1, 3)):
            wanted = batches(out) + 1
            world.publish(6)
            driver.wait_for(partial(reached, out, wanted))
        driver.wait(moments.uniform(0, 0.5))
        driver.kill()
    world.publish(10)
    _, counts = run(tmp_path, {"do": "once", **step}, {"do": "count", "out": str(out)})
    expected = [[stream, offset, 1] for stream in world.streams for offset in range(world.published[stream])]
    assert counts == expected


def test_the_streams_of_a_killed_query_are_taken_over_once_its_session_has_ended(
    world: World, tmp_path: Path, start_driver: Callable[..., Driver]
) -> None:
    """One query in Spark, and one beside it; the leader lives elsewhere, so only the session must expire."""
    world.lead()
    other = world.query()
    other.run(lambda: other.held.keys() == set(world.streams))
    out = tmp_path / "out"
    named = options(world.url, str(SUBSCRIPTION), sessionTimeoutMs=3000, embeddedLeader=False)
    driver = start_driver(
        {"do": "always", "options": named, "checkpoint": str(tmp_path / "checkpoint"), "out": str(out)}
    )
    driver.wait_for(lambda: not other.trigger() and len(other.held) == 2)
    world.publish(5)
    driver.wait_for(partial(reached, out, 0))
    driver.kill()
    other.run(lambda: other.held.keys() == set(world.streams))
    world.publish(1)
    last = {(stream, world.published[stream] - 1) for stream in world.streams}
    other.run(lambda: last <= {row[:2] for row in other.checkpoint.rows})

    def committed() -> bool:
        other.trigger()
        return world.all_committed

    wait_for(committed)
