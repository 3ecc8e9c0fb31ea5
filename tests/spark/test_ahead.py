"""Reading ahead gives the same, stops when nobody listens, and hands errors on."""

from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from streamlease.spark.ahead import ahead


class Source:
    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.made = 0
        self.closed = False
        self._count = count
        self._error = error

    def items(self) -> Generator[int, None, None]:
        try:
            for number in range(self._count):
                self.made += 1
                yield number
            if self._error is not None:
                raise self._error
        finally:
            self.closed = True


def one(item: int) -> int:
    return 1


def test_everything_comes_in_order() -> None:
    source = Source(100)
    assert list(ahead(source.items(), one)) == list(range(100))
    assert source.closed


def test_an_error_comes_after_what_was_before_it() -> None:
    source, got = Source(3, ValueError("broken")), []
    with pytest.raises(ValueError, match="broken"):
        got.extend(ahead(source.items(), one))
    reader = ahead(Source(3, ValueError("broken")).items(), one)
    assert [next(reader) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="broken"):
        next(reader)


def test_whoever_stops_early_leaves_no_thread_and_no_open_source() -> None:
    source = Source(1_000_000)
    reader = ahead(source.items(), one, 2)
    assert next(reader) == 0
    reader.close()  # type: ignore[attr-defined]
    assert source.closed
    assert source.made <= 5
    assert not [thread for thread in threading.enumerate() if thread.name == "streamlease-ahead"]
