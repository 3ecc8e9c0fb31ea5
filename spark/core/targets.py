"""When a query that reads what is available now can begin, and when it has read it: pure functions.

The group as its leader describes it says which streams are still to come to the query. Others are never its
to read, and are not waited for:

* what another living query holds. A query that was killed is not told from a living one by its leases, only
  by whether its leader has heard of it since this query asked first;
* what another living query is asked for, but has in its open cut: that is waited for, ``CUT_SECONDS`` long;
* what stands behind such a stream, in a later generation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from streamlease.protocol.errors import Halted
from streamlease.protocol.ids import StreamId

CUT_SECONDS = 10.0
"""How long streams are waited for that another query has in its open cut."""

_AT_REST = ("granted", "free", "waiting", "finished", "stopped")
_NEVER_HELD = ("waiting", "finished", "stopped")
"""States of streams that nobody has, and nobody gets in a moment."""

_Row = Mapping[str, Any]


def exhausted(
    targets: Mapping[str, int],
    view: Mapping[str, Any],
    session: str,
    done: Mapping[str, int],
    waited: float = 0.0,
) -> bool:
    """Whether nothing below the targets is left for `session` to read.

    Args:
        targets: the end of each stream that is available now.
        view: the group as its leader describes it.
        done: how far the session itself has finished each stream that it may read.
        waited: for how many seconds the session has asked for that view, which it did once it had read all
            that it holds.

    Raises:
        Halted: what is left can be read once an operator says so: the group is paused, all borrowers are
            drained, or streams stand at messages that failed and nothing else is left.
    """
    rows = {row["stream"]: row for row in view["streams"]}
    left = [
        stream
        for stream, target in targets.items()
        if target and max(rows[stream]["committed"] if stream in rows else 0, done.get(stream, 0)) < target
    ]
    if view["state"] == "paused":
        if left:
            raise Halted(_paused(view["paused"], len(left)))
        return True
    silent = _silent(view, waited)
    if not _is_settled(view, session, silent, waited) or any(stream not in rows for stream in left):
        return False
    others = [
        row for row in rows.values() if row.get("state") == "stopped" or _is_anothers(row, session, silent)
    ]
    for row in map(rows.__getitem__, left):
        state = row.get("state")
        if state == "waiting":
            if not _is_behind(row, others):
                return False
        elif state != "stopped" and not _is_anothers(row, session, silent):
            if state == "free":
                _refuse_if_drained(view)
            return False
    stopped = [rows[stream] for stream in left if rows[stream].get("state") == "stopped"]
    if stopped:
        raise Halted(f"all else that was available now is read, but {told(stopped)}")
    return True


def at_hand(view: Mapping[str, Any] | None, session: str, held: Collection[str], waited: float = 0.0) -> bool:
    """Whether all streams that will be those of `session` are, so that one cut can hold them all.

    Args:
        view: the group as its leader describes it; None: not known.
        held: the streams that the session holds.
        waited: for how many seconds the session has asked for that view.
    """
    if view is None:
        return False
    silent = _silent(view, waited)
    return _is_settled(view, session, silent, waited) and all(
        row["stream"] in held or row.get("state") in _NEVER_HELD or _is_anothers(row, session, silent)
        for row in view["streams"]
    )


def holds_all(view: Mapping[str, Any], session: str, granted: Collection[str], *, patient: bool) -> bool:
    """Whether every stream that is counted as the session's own is granted to it.

    Args:
        view: the group as its leader describes it.
        granted: the streams that are granted to the session, and not asked back.
        patient: whether streams are waited for that may still become its own.
    """
    if view["state"] != "stable" and (patient or view["state"] != "rebalancing"):
        return False
    return all(
        row["stream"] in granted
        for row in view["streams"]
        if row["session"] == session and row.get("state") not in _NEVER_HELD
    )


def stopped(view: Mapping[str, Any]) -> list[_Row]:
    """The streams that stand at a message that failed, until an operator decides."""
    return [row for row in view["streams"] if row.get("state") == "stopped"]


def told(rows: Iterable[_Row]) -> str:
    """What is wrong with streams that are stopped, and what to do."""
    first, *more = rows
    of = f" and {len(more)} more streams stand" if more else " stands"
    return (
        f"stream {first['stream']}{of} at a message that failed: {first['why']}; then start the query again"
    )


def other_living(view: Mapping[str, Any], session: str) -> _Row | None:
    """Some borrower of another query, or program, that is connected."""
    return next((one for one in view["borrowers"] if one["session"] != session and one["id"]), None)


def obstacle(view: Mapping[str, Any] | None, session: str, held: Collection[str]) -> str:
    """What a query waits for that waits for its streams; empty if that is not known."""
    for row in view["streams"] if view is not None else ():
        well = row["session"] != session or row["stream"] in held
        if not (row["state"] in _NEVER_HELD or (row["state"] == "granted" and well)):
            return f"stream {row['stream']} is {row['state']}" + (f", {row['why']}" if row["why"] else "")
    for one in view["borrowers"] if view is not None else ():
        if one["session"] != session:
            seconds = one["last_seen_ms"] / 1000
            return f"borrower {one['name']} was heard {seconds:.0f} s ago, streams: {one['streams']}"
    return ""


def _refuse_if_drained(view: Mapping[str, Any]) -> None:
    connected = [one for one in view["borrowers"] if one["id"]]
    if connected and all(one["drained"] for one in connected):
        raise Halted(
            f"all borrowers are drained by an operator, such as {connected[0]['name']}, and get no streams: "
            f"take that back ('streamlease group drain --undo'), and start the query again"
        )


def _paused(paused: Mapping[str, Any], left: int) -> str:
    until = "until it is resumed" if paused["until_ms"] is None else f"until {_time(paused['until_ms'])}"
    streams = f"{left} streams are" if left > 1 else "1 stream is"
    return (
        f"the group is paused by {paused['who'] or 'its leader'} since {_time(paused['at_ms'])}, {until}, "
        f"and {streams} not read to the end: resume it ('streamlease group resume'), and start "
        f"the query again"
    )


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _silent(view: Mapping[str, Any], waited: float) -> set[str]:
    """The sessions of which the leader has heard nothing since it was asked first."""
    known = view.get("borrowers", ())
    heard = {one["session"] for one in known if one["id"] and one["last_seen_ms"] < waited * 1000}
    return {one["session"] for one in known} - heard


def _is_anothers(row: _Row, session: str, silent: Collection[str]) -> bool:
    return row["session"] not in (None, session) and row["session"] not in silent


def _is_settled(view: Mapping[str, Any], session: str, silent: Collection[str], waited: float) -> bool:
    """Whether it is settled whose the streams are.

    One that is on its way may still become the session's own, unless a query keeps it for long.
    """
    if view["state"] == "stable" or waited < CUT_SECONDS:
        return bool(view["state"] == "stable")
    moving = [row for row in view["streams"] if row.get("state") not in _AT_REST]
    return bool(moving) and all(
        row["state"] == "revoking" and row["open_cut"] and _is_anothers(row, session, silent)
        for row in moving
    )


def _is_behind(row: _Row, others: Iterable[_Row]) -> bool:
    """Whether a stream that waits for its former generation waits for one that is not this query's."""
    own = StreamId.parse(row["stream"])
    return any(
        (before := StreamId.parse(other["stream"])).space == own.space and before.generation < own.generation
        for other in others
    )
