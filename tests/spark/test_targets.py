"""When a query that reads what is available now may begin, and when it may end."""

from __future__ import annotations

from typing import Any

import pytest

from streamlease.spark.targets import at_hand, exhausted

ME, OTHER = "q-me", "q-other"


def view(*streams: tuple[str, str | None, int], state: str = "stable") -> dict[str, Any]:
    named = [{"stream": name, "session": owner, "committed": done} for name, owner, done in streams]
    return {"state": state, "streams": named}


@pytest.mark.parametrize(
    ("seen", "done", "expected"),
    [
        (view(("a", ME, 5), ("b", ME, 7)), {}, True),
        (view(("a", ME, 4), ("b", ME, 7)), {}, False),
        (view(("a", ME, 4), ("b", ME, 7)), {"a": 5}, True),
        (view(("a", OTHER, 0), ("b", ME, 7)), {}, True),
        (view(("a", None, 0), ("b", ME, 7)), {}, False),
        (view(("a", None, 5), ("b", ME, 7)), {}, True),
        (view(("a", ME, 5)), {}, False),
        (view(("a", ME, 5), ("b", ME, 7), state="rebalancing"), {}, False),
        (view(("a", ME, 5), ("b", ME, 7), state="idle"), {}, False),
        (view(("a", ME, 9), ("b", ME, 9), ("c", ME, 0)), {}, True),
    ],
    ids=[
        "all committed", "some left", "finished here", "another's", "nobody's", "nobody's, but read",
        "not listed yet", "on its way", "nobody there", "beyond",
    ],
)  # fmt: skip
def test_what_is_left(seen: dict[str, Any], done: dict[str, int], expected: bool) -> None:
    assert exhausted({"a": 5, "b": 7}, seen, ME, done) is expected


def test_an_empty_stream_need_not_be_listed() -> None:
    assert exhausted({"a": 0}, view(), ME, {})


@pytest.mark.parametrize(
    ("seen", "held", "expected"),
    [
        (view(("a", ME, 0), ("b", ME, 0)), {"a", "b"}, True),
        (view(("a", ME, 0), ("b", ME, 0)), {"a"}, False),
        (view(("a", ME, 0), ("b", None, 0)), {"a"}, False),
        (view(("a", ME, 0), ("b", OTHER, 0)), {"a"}, True),
        (view(("a", ME, 0), ("b", ME, 0), state="rebalancing"), {"a", "b"}, False),
        (None, {"a", "b"}, False),
    ],
    ids=["all", "one is still to come", "nobody's", "another's", "on its way", "not known"],
)
def test_what_is_at_hand(seen: dict[str, Any] | None, held: set[str], expected: bool) -> None:
    assert at_hand(seen, ME, held) is expected
