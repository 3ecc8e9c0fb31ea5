"""A stream against a model of itself: publish, retry, seal, trim, compact, read and since, in any order."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from streamlease.protocol.errors import HistoryTruncated, InvalidInput, StreamSealed
from streamlease.protocol.ids import StreamId
from streamlease.streams.log import merging
from streamlease.streams.log.compacting import first_run, replace
from streamlease.streams.log.keys import stream_log, stream_merged, stream_meta
from streamlease.streams.log.log import Append, Appended, AsyncLog
from streamlease.streams.log.merging import merged
from streamlease.streams.log.segments import read_range
from streamlease.streams.log.times import EPOCH, MICROSECOND, waiting
from streamlease.streams.redis.connection import BlockingRedis, run_blocking
from streamlease.streams.redis.scripts import load_script
from streamlease.streams.spaces.retention import Retention, Trim
from tests.streams.helpers import append, offsets, payloads, rows

STREAM = StreamId("space", 0, 0)


@dataclass
class Entry:
    first: int
    end: int
    at: int
    size: int
    times: list[int]
    """When each of its messages was appended."""


class Log(RuleBasedStateMachine):
    """A stream, and what its model says of it."""

    redis: BlockingRedis
    """Is emptied at the beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.redis.flushall()
        run_blocking(
            load_script("streamlease.streams.log", "open").run(self.redis, [stream_meta(STREAM)], ["open"])
        )
        self.log = AsyncLog(self.redis)
        self.entries: list[Entry] = []
        self.next = 0
        self.merged = 0
        self.floor = 0
        self.gone_at = 0
        self.sequence = 0
        self.last: tuple[Append, Appended] | None = None
        self.sealed = False

    @rule(size=st.integers(1, 12) | st.just(1))
    def publish(self, size: int) -> None:
        one = append(STREAM, self.sequence, rows(self.next, size))
        if self.sealed:
            with pytest.raises(StreamSealed):
                run_blocking(self.log.append(one))
            return
        done = run_blocking(self.log.append(one))
        assert (done.first, done.rows, done.duplicate) == (self.next, size, False)
        assert done.append_time > (self.entries[-1].at if self.entries else self.gone_at)
        stored = sum(map(len, one.entry.fields)) + 1 + len(str(done.append_time))
        times = [done.append_time] * size
        self.entries.append(Entry(self.next, self.next + size, done.append_time, stored, times))
        self.next += size
        self.sequence += 1
        self.last = (one, done)

    @precondition(lambda self: self.last is not None)
    @rule()
    def retry(self) -> None:
        """Its answer was lost: the same again adds nothing, even after a trim or the seal."""
        assert self.last is not None
        one, done = self.last
        assert run_blocking(self.log.append(one)) == done._replace(duplicate=True)

    @rule()
    def seal(self) -> None:
        reply = run_blocking(
            load_script("streamlease.streams.log", "seal").run(self.redis, [stream_meta(STREAM)], ["news"])
        )
        assert int(reply[1]) == self.next
        self.sealed = True

    @rule(
        limit=st.integers(0, 100),
        messages=st.none() | st.integers(1, 40),
        size=st.none() | st.integers(1, 2000),
        force=st.booleans(),
    )
    def trim(self, limit: int, messages: int | None, size: int | None, force: bool) -> None:
        retention = Retention(messages=messages, bytes=size)
        call = Trim(STREAM, retention, None if force else limit, "somebody").call(1_000_000, 10**9)
        reply = run_blocking(call.script.run(self.redis, call.keys, call.args))
        removed = 0
        while self.entries:
            oldest = self.entries[0]
            surplus = (messages is not None and oldest.end - 1 < self.next - messages) or (
                size is not None and sum(entry.size for entry in self.entries) > size
            )
            if not surplus or (not force and oldest.end > limit):
                break
            self.entries.pop(0)
            self.floor, self.gone_at, removed = oldest.end, oldest.at, removed + 1
        held = bool(self.entries) and surplus
        left = sum(entry.size for entry in self.entries)
        assert [int(part) for part in reply[1:4]] == [self.floor, left, removed]
        assert bool(reply[6]) is held

    @rule(young=st.integers(0, 10))
    def compact(self, young: int) -> None:
        """The first entries become one, unless they are too young, or too few."""
        before = self.entries[-young].at if 0 < young <= len(self.entries) else 2**60
        found = run_blocking(first_run(self.redis, STREAM, before))
        if found.run is None:
            return
        run, fields = merged(STREAM, found.run, found.versions)
        done = run_blocking(replace(self.redis, STREAM, run, found.mark, fields))
        assert run_blocking(replace(self.redis, STREAM, run, found.mark, fields)) is None
        border = int(self.redis.hget(stream_meta(STREAM), "merged") or 0)
        assert done is not None
        gone = [one for one in self.entries if self.merged <= one.first < border]
        assert (done.entries, done.messages) == (len(gone), border - gone[0].first)
        assert all(one.at < before for one in gone)
        rest = [one for one in self.entries if one.first >= border]
        kept = [one for one in self.entries if one.first < self.merged]
        stored = self.redis.xrevrange(stream_merged(STREAM), count=1)[0][1]
        size = sum(len(name) + len(value) for name, value in stored.items())
        times = [at for one in gone for at in one.times]
        self.entries = [*kept, Entry(gone[0].first, border, gone[-1].at, size, times), *rest]
        self.merged = border

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, self.next))
        end = data.draw(st.integers(start, self.next))
        if start == end:
            assert [*read_range(self.redis, STREAM, start, end)] == []
        elif start < self.floor:
            with pytest.raises(HistoryTruncated) as error:
                [*read_range(self.redis, STREAM, start, end)]
            assert error.value.oldest == self.floor
        else:
            batches = [*read_range(self.redis, STREAM, start, end)]
            assert offsets(batches) == list(range(start, end))
            assert payloads(batches) == [row.payload for row in rows(start, end - start)]
            times = [at for one in self.entries for at in one.times][start - self.floor : end - self.floor]
            assert appended(batches) == times

    @rule(data=st.data())
    def since_a_moment(self, data: st.DataObject) -> None:
        times = [self.gone_at, *(entry.at for entry in self.entries)]
        at = max(0, data.draw(st.sampled_from(times)) + data.draw(st.integers(-1, 1)))
        if at < self.gone_at:
            with pytest.raises(HistoryTruncated) as error:
                run_blocking(self.log.since(STREAM, EPOCH + at * MICROSECOND))
            assert error.value.oldest == self.floor
            return
        expected = self.floor + bisect_right([one for entry in self.entries for one in entry.times], at)
        assert run_blocking(self.log.since(STREAM, EPOCH + at * MICROSECOND)) == expected

    @rule(data=st.data())
    def since_an_offset(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(-1, self.next + 1))
        if offset >= self.next:
            with pytest.raises(InvalidInput):
                run_blocking(self.log.since(STREAM, offset))
        elif offset + 1 < self.floor:
            with pytest.raises(HistoryTruncated):
                run_blocking(self.log.since(STREAM, offset))
        else:
            assert run_blocking(self.log.since(STREAM, offset)) == offset + 1

    @invariant()
    def the_meta_tells_what_is_there(self) -> None:
        meta = self.redis.hgetall(stream_meta(STREAM))
        assert int(meta[b"next"]) == self.next
        assert int(meta[b"floor"]) == self.floor
        assert int(meta[b"bytes"]) == sum(entry.size for entry in self.entries)
        entries = [*self.redis.xrange(stream_merged(STREAM)), *self.redis.xrange(stream_log(STREAM))]
        assert [id for id, _ in entries] == [
            b"%d-%d" % (one.end - 1, one.end - one.first) for one in self.entries
        ]

    @rule(data=st.data())
    def the_time_of_one_message(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.floor, self.next))
        times = [at for one in self.entries for at in one.times]
        seen = run_blocking(waiting(self.redis, [(STREAM, offset)]))  # type: ignore[arg-type]
        expected = None if offset == self.next else times[offset - self.floor]
        assert seen[STREAM, offset] == (self.next, self.floor, expected, expected)


def appended(batches: Sequence[pa.RecordBatch]) -> list[int]:
    """When the messages were appended."""
    return [at for one in batches for at in one.column("append_timestamp").cast(pa.int64()).to_pylist()]


def machine(redis: BlockingRedis) -> type[Log]:
    """A machine that runs on `redis`."""
    return type("LogOnRedis", (Log,), {"redis": redis})


@pytest.mark.slow
def test_a_stream_behaves_as_its_model(blocking: BlockingRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "ENOUGH_ROWS", 10)  # so many are a run
    run_state_machine_as_test(
        machine(blocking),
        settings=settings(
            max_examples=25,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
        ),
    )
