"""When a query that reads what is available now may begin, and when it may end."""

from __future__ import annotations

import re
from typing import Any

import pytest

from streamlease.protocol.errors import Halted
from streamlease.spark.core.targets import CUT_SECONDS, at_hand, exhausted, obstacle, other_living

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


# ---------------------------------------------------------------- streams that do not come


def row(stream: str, session: str | None, state: str = "granted", **more: Any) -> dict[str, Any]:
    return {
        "stream": stream,
        "session": session,
        "committed": 0,
        "state": state,
        "why": "",
        "open_cut": False,
    } | more


def group(*rows: dict[str, Any], state: str = "stable", heard: float = 0.0, **more: Any) -> dict[str, Any]:
    """The view of a group of which the leader heard another query's borrower so many seconds ago."""
    common = {"streams": 1, "drained": False}
    other = {"session": OTHER, "name": f"{OTHER}/0", "id": "b-1", "host": "there", **common}
    me = {"session": ME, "name": f"{ME}/0", "id": "b-2", "host": "here", "last_seen_ms": 0, **common}
    other["last_seen_ms"] = int(heard * 1000)
    return {"state": state, "streams": [*rows], "borrowers": [me, other]} | more


MINE, KEPT = row("s.1.0", ME, committed=5), row("s.1.1", OTHER, "revoking", open_cut=True)
TARGETS = {"s.1.0": 5, "s.1.1": 7}


@pytest.mark.parametrize(
    ("seen", "waited", "expected"),
    [
        (group(MINE, row("s.1.1", OTHER), heard=0.5), 1.0, True),
        (group(MINE, row("s.1.1", OTHER), heard=0.5), 0.0, False),
        (group(MINE, row("s.1.1", OTHER), heard=4.0), 3.0, False),
        (group(MINE, KEPT, state="rebalancing"), CUT_SECONDS - 1, False),
        (group(MINE, KEPT, state="rebalancing"), CUT_SECONDS, True),
        (group(MINE, KEPT, state="rebalancing", heard=99.0), CUT_SECONDS, False),
        (group(MINE, KEPT | {"open_cut": False}, state="rebalancing"), CUT_SECONDS, False),
        (group(MINE, row("s.1.1", None, "waiting"), row("s.0.0", OTHER)), 1.0, True),
        (group(MINE, row("s.1.1", None, "waiting"), row("s.0.0", ME)), 1.0, False),
        (group(MINE, row("s.1.1", None, "waiting"), row("s.0.0", None, "finished")), 1.0, False),
        (group(MINE, row("s.1.1", None, "waiting"), row("t.0.0", OTHER)), 1.0, False),
    ],
    ids=[
        "another's that lives", "another's that is not known to live yet", "another's that is dead",
        "in an open cut", "in an open cut for long", "in the open cut of a dead query", "on its way",
        "behind another's", "behind one's own", "behind what is done", "behind something unknown",
    ],
)  # fmt: skip
def test_what_will_not_come(seen: dict[str, Any], waited: float, expected: bool) -> None:
    assert exhausted(TARGETS, seen, ME, {}, waited) is expected


STOPPED = row("s.1.1", None, "stopped", why="offset 3 failed 5 times (no)")


def test_a_stopped_stream_is_told_once_nothing_else_is_left() -> None:
    assert not exhausted(TARGETS, group(MINE | {"committed": 4}, STOPPED), ME, {}, 1.0)
    with pytest.raises(
        Halted, match=r"stream s\.1\.1 stands at a message that failed: offset 3 failed 5 times"
    ):
        exhausted(TARGETS, group(MINE, STOPPED), ME, {}, 1.0)
    assert exhausted({"s.1.0": 5}, group(MINE, STOPPED), ME, {}, 1.0)


def test_a_pause_is_told_with_who_and_until_when() -> None:
    paused = {"at_ms": 0, "who": "ann@box", "until_ms": 90_000}
    seen = group(MINE, row("s.1.1", None, "free"), state="paused", paused=paused)
    text = "paused by ann@box since 1970-01-01 00:00:00 UTC, until 1970-01-01 00:01:30 UTC, and 1 stream is"
    with pytest.raises(Halted, match=re.escape(text)):
        exhausted(TARGETS, seen, ME, {})
    assert exhausted({"s.1.0": 5}, seen, ME, {})


def test_that_all_borrowers_are_drained_is_told_if_streams_are_nobody_s() -> None:
    seen = group(row("s.1.0", None, "free"))
    for one in seen["borrowers"]:
        assert not exhausted({"s.1.0": 5}, seen, ME, {}, 1.0)
        one["drained"] = True
    with pytest.raises(Halted, match=r"all borrowers are drained .*, such as q-me/0, .* --undo"):
        exhausted({"s.1.0": 5}, seen, ME, {}, 1.0)


@pytest.mark.parametrize("state", ["finished", "waiting", "stopped"])
def test_a_stream_that_nobody_gets_is_not_waited_for_by_the_only_cut(state: str) -> None:
    assert at_hand(group(MINE, row("s.0.0", None, state)), ME, {"s.1.0"}, 1.0)


def test_the_only_cut_waits_for_the_streams_of_a_dead_query() -> None:
    seen = group(MINE, row("s.1.1", OTHER), heard=5.0)
    assert not at_hand(seen, ME, {"s.1.0"}, 4.0)
    assert at_hand(seen, ME, {"s.1.0"}, 6.0)


def test_another_consumer_is_one_that_is_connected() -> None:
    seen = group(MINE)
    assert other_living(seen, ME) is seen["borrowers"][1]
    seen["borrowers"][1]["id"] = None
    assert other_living(seen, ME) is None


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (None, ""),
        (
            group(MINE, KEPT | {"why": "open cut since 3.0 s"}),
            "stream s.1.1 is revoking, open cut since 3.0 s",
        ),
        (group(MINE, row("s.1.1", None, "free", why="all drained")), "stream s.1.1 is free, all drained"),
        (group(MINE, row("s.1.1", ME)), "stream s.1.1 is granted"),
        (group(MINE, STOPPED, heard=9.0), "borrower q-other/0 was heard 9 s ago, streams: 1"),
    ],
)
def test_what_is_in_the_way(seen: dict[str, Any] | None, text: str) -> None:
    assert obstacle(seen, ME, {"s.1.0"}) == text
