"""Subjects that take minutes run in small here: what they start works together, and rows have figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from bench import backlog, epochs, idle, peers, sharing, start, wide
from bench.contenders.workload import Done
from bench.frame import Frame, Table
from bench.idle import PROCESSES

FIGURE = re.compile(r"[\d,]+(\.\d+)?%?")


def figures(table: Table, columns: Sequence[str]) -> list[list[float]]:
    """The named columns of all rows as numbers; there is no other text in them."""
    places = [table.columns.index(name) for name in columns]
    assert all(len(row) == len(table.columns) for row in table.rows), table
    assert all(FIGURE.fullmatch(row[place]) for row in table.rows for place in places), table
    return [[float(row[place].rstrip("%").replace(",", "")) for place in places] for row in table.rows]


def names(table: Table) -> list[str]:
    return [row[0] for row in table.rows]


def test_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "CONTENDERS", peers.CONTENDERS[:2])
    monkeypatch.setattr(peers, "RATES", (1_000,))
    monkeypatch.setattr(peers, "PACED_SECONDS", 0.5)
    monkeypatch.setattr(peers, "WARM_SECONDS", 0.1)
    monkeypatch.setattr(peers, "SINGLES", 50)
    monkeypatch.setattr(peers, "_compile", lambda: None)
    publishing, consuming, single, paced = peers.measure(Frame(20_000, 1))
    assert names(publishing) == ["redis-py", "Streamlease"]
    assert names(consuming) == ["redis-py", "Streamlease, messages", "Streamlease, Arrow"]
    assert consuming.columns.count("ratio") == 2
    for rate, whole, first in figures(consuming, ["messages/s", "with the start, /s", "first batch ms"]):
        # The rate behind the first batch may be lower: redis-py's first one has most of so few messages.
        assert rate > 0
        assert 0 < whole <= 20_000 / (first / 1000)
    assert names(single)[0] == "redis-py, asyncio"
    assert names(paced) == ["redis-py", "Streamlease"]
    for table in (single, paced):
        assert all(0 < p50 <= p99 for p50, p99 in figures(table, ["p50 ms", "p99 ms"]))


def test_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("EPOCH_MESSAGES", 100), ("PACED_EPOCHS", 5), ("PUBLISHERS", 20), ("WIDE_EPOCHS", 2)):
        monkeypatch.setattr(epochs, name, value)
    monkeypatch.setattr(epochs, "WIDE_STREAMS", (40, 39, 40))
    rates, single = epochs.measure(Frame(400, 1))
    assert names(rates) == ["publishing", "reading"]
    for without, with_, ratio in figures(rates, ["without epochs /s", "with epochs /s", "ratio"]):
        assert min(without, with_) > 0 and ratio == pytest.approx(with_ / without, rel=0.1, abs=0.01)
    of_items = [name for name in names(single) if "a collection of 2,000 items" in name]
    assert [name.partition("subscriber, ")[2] for name in of_items] == [
        f"{behind} changes behind the snapshots" for behind in ("0", "4,000")
    ]
    assert "an epoch in 10 of 119 streams in 3 generations" in names(single)


def test_a_rate_without_the_first_batch_wants_more_than_one() -> None:
    done = Done(None, 2.0, 1.0, (1.0, 100))
    assert done.rate(300) == 200.0
    assert done.whole_rate(300) == 150.0
    with pytest.raises(RuntimeError, match="had all 100 messages: give more"):
        done.rate(100)


def test_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    consumed: list[tuple[Any, ...]] = []
    whole = wide.consume

    async def noted(url: str, streams: int, count: int, run: str, *, gathered: bool = False) -> wide.Turn:
        consumed.append((streams, run, gathered))
        return await whole(url, streams, count, run, gathered=gathered)

    monkeypatch.setattr(wide, "consume", noted)
    monkeypatch.setattr(wide, "SIZES", (2, 6))
    monkeypatch.setattr(wide, "MOST_IN_SPACE", 4)
    monkeypatch.setattr(wide, "SINGLE", 5)
    table, below, heard = wide.measure(Frame(60, 2))
    assert consumed[0] == (2, "warm", False)
    assert len(consumed) == 1 + 2 * 4
    assert [(row[0], row[1]) for row in table.rows] == [
        ("2", "awaited"), ("6", "awaited"), ("2", "gathered"), ("6", "gathered")
    ]  # fmt: skip
    assert [batches for (batches,) in figures(table, ["batches"])][1] >= 6
    assert names(below) == [*wide.LAYERS]
    assert names(heard) == ["2", "6"]
    assert all(0 < p50 <= p99 for p50, p99 in figures(heard, ["a message p50 ms", "p99 ms"]))


def test_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "WARM", 1)
    monkeypatch.setattr(start, "LIVED", 0.0)
    monkeypatch.setattr(start, "SESSION_TIMEOUTS", (1.5,))
    starts, killed = start.measure(Frame(200, 1))
    assert len(starts.rows) == 4
    assert all(0 < median <= longest for median, longest in figures(starts, ["median", "longest"]))
    ((after,),) = figures(killed, ["all consumed again after s"])
    assert after > 0


def test_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    layouts = {"one process": 0, f"one host, {PROCESSES} processes": 1, "redis-py": 0}
    monkeypatch.setattr(idle, "LAYOUTS", layouts)
    monkeypatch.setattr(idle, "GROUPS", (1,))
    monkeypatch.setattr(idle, "MANY", (3,))
    monkeypatch.setattr(idle, "EPOCHS", (3,))
    monkeypatch.setattr(idle, "SPACES", (20,))
    monkeypatch.setattr(idle, "SETTLE_SECONDS", 0.1)
    monkeypatch.setattr(idle, "REST_SECONDS", 2.5)
    table, by_command, many, spaces, keepers = idle.measure(Frame())
    assert names(table) == [*layouts]
    assert all(rate > 0 for (rate,) in figures(table, ["commands/s"]))
    assert "xreadgroup" in names(by_command)
    ((created, first),) = figures(spaces, ["create one, ms", "from subscribing to the first batch, ms"])
    assert created > 0
    assert first > 0
    assert all(rate > 0 for more in (many, keepers) for (rate,) in figures(more, ["commands/s"]))


def test_backlog() -> None:
    plain = next(iter(backlog.measure(Frame(300, 1))))
    assert [name.partition(",")[0] for name in names(plain)] == [
        "subscription", "ranges into Arrow", "subscription", "ranges into Arrow", "merging them"
    ]  # fmt: skip
    assert all(float(row[2]) >= 0 for row in plain.rows)


def test_sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "SIZES", (200,))
    (table,) = sharing.measure(Frame(1, 1))
    assert [name.partition(": ")[2] for name in names(table)] == [
        "one consumer comes",
        "a second one comes",
        "the first is killed",
        "a third one comes",
        "the second leaves",
    ]
    for seconds, stall, answer in figures(table, table.columns[1:]):
        assert seconds > 0 and stall >= 0 and answer > 0
