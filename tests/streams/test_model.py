"""A stream against a model of itself: publish, retry, seal, trim, read and since, in any order."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

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
from streamlease.streams.log.keys import stream_log, stream_meta
from streamlease.streams.log.log import Append, Appended, AsyncLog
from streamlease.streams.log.segments import read_range
from streamlease.streams.log.times import EPOCH, MICROSECOND
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
        self.floor = 0
        self.gone_at = 0
        self.sequence = 0
        self.last: tuple[Append, Appended] | None = None
        self.sealed = False

    @rule(size=st.integers(1, 12))
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
        self.entries.append(Entry(self.next, self.next + size, done.append_time, stored))
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

    @rule(data=st.data())
    def since_a_moment(self, data: st.DataObject) -> None:
        times = [self.gone_at, *(entry.at for entry in self.entries)]
        at = max(0, data.draw(st.sampled_from(times)) + data.draw(st.integers(-1, 1)))
        if at < self.gone_at:
            with pytest.raises(HistoryTruncated) as error:
                run_blocking(self.log.since(STREAM, EPOCH + at * MICROSECOND))
            assert error.value.oldest == self.floor
            return
        later = bisect_right([entry.at for entry in self.entries], at)
        expected = self.entries[later].first if later < len(self.entries) else self.next
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
        assert self.redis.xlen(stream_log(STREAM)) == len(self.entries)


def machine(redis: BlockingRedis) -> type[Log]:
    """A machine that runs on `redis`."""
    return type("LogOnRedis", (Log,), {"redis": redis})


def test_a_stream_behaves_as_its_model(blocking: BlockingRedis) -> None:
    run_state_machine_as_test(
        machine(blocking),
        settings=settings(
            max_examples=25,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
        ),
    )
