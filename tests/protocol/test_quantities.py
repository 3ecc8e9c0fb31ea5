"""Durations and sizes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.plurals import counted
from streamlease.protocol.quantities import (
    MOST,
    format_duration,
    format_size,
    parse_count,
    parse_duration,
    parse_size,
)

DAY = 86_400_000


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("7d", 7 * DAY), ("1w", 7 * DAY), ("12h", DAY // 2), ("30m", 1_800_000), ("45s", 45_000),
        ("500ms", 500), ("1d12h", DAY * 3 // 2), ("1.5h", 5_400_000), ("0.001s", 1),
        ("7D", 7 * DAY), ("1m1ms", 60_001),
    ],
)  # fmt: skip
def test_durations(text: str, milliseconds: int) -> None:
    assert parse_duration("--retention", text) == milliseconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1GiB", 2**30), ("500MB", 500_000_000), ("1024", 1024), ("1 kB", 1000), ("1.5KiB", 1536), ("7B", 7),
        ("2tib", 2**41),
    ],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert parse_size("--retention-bytes", text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "d",
        "-1d",
        "7 days",
        "1y",
        "0d",
        "0.5ms",
        "1e3s",
        "99999999999999w",
        "٧d",
        "7d\n",
        "1GiB",
        "nan",
    ],
)
def test_what_is_no_duration_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(InvalidOption, match="--retention") as error:
        parse_duration("--retention", text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "GiB", "-1", "0", "1.5B", "1GB/s", "1ib", "1XB", "9" * 17, "1\n", "7d"])
def test_what_is_no_size_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(InvalidOption, match="--retention-bytes"):
        parse_size("--retention-bytes", text)


def test_counts_begin_at_one() -> None:
    assert parse_count("n", 1) == 1
    for value in (0, -1, MOST + 1, True, 1.5, "7", None):
        with pytest.raises(InvalidOption, match="n "):
            parse_count("n", value)


@given(st.integers(1, MOST))
def test_what_is_formatted_is_read_back(value: int) -> None:
    assert parse_duration("x", format_duration(value)) == value
    assert parse_size("x", format_size(value)) == value


def test_one_thing_is_no_several() -> None:
    assert [counted(n, "stream") for n in (0, 1, 2)] == ["0 streams", "1 stream", "2 streams"]
    assert [counted(n, "entry", "entries") for n in (1, 2)] == ["1 entry", "2 entries"]
