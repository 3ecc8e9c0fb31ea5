"""What needs attention, worst first, and rates from counts."""

from __future__ import annotations

from typing import Any

from streamlease.admin.facts.hosts import Host
from streamlease.admin.ui.attention import concerns
from streamlease.admin.ui.board_rows import GroupOnPage
from streamlease.admin.ui.message_rates import PAUSE, STEP, MessageRates


def group(name: str, **values: Any) -> GroupOnPage:
    row: dict[str, Any] = {
        "subscription": name, "leader": "h", "term": 1, "streams": 4, "held": 4, "borrowers": 1, "moves": 0,
        "lag": 5, "lag_seconds": 0.5, "rate": 1.0, "state": "consuming", "spaces": [], "paused_since": None,
        "paused_by": None, "stopped": [], "dead_letters": 0, "expired": False,
    }  # fmt: skip
    return GroupOnPage(**{**row, **values})


def test_the_worst_comes_first_and_what_is_well_is_not_named() -> None:
    groups = [
        group("well"),
        group("late", state="behind", lag_seconds=7200.0, lag=9),
        group("paused", state="paused", paused_by="ana", paused_since=1_000, lag=1),
        group("alone", state="no consumers", lag=70),
        group("leaderless", state="no leader", lag=80),
        group("unknown", lag=None, lag_seconds=None),
        group("stopped", state="stopped", stopped=["a.0.1"]),
        group("empty", state="no leader", lag=0),
    ]
    found = concerns(groups, [], [], now=601_000)
    assert [one.subscription for one in found] == [
        "stopped", "unknown", "leaderless", "alone", "paused", "late",
    ]  # fmt: skip
    said = {one.subscription: (one.level, one.act, one.text) for one in found}
    assert said["stopped"] == (
        "bad", "retry", "stream a.0.1 is stopped at a message that failed too often",
    )  # fmt: skip
    assert said["paused"] == ("warn", "resume", "ana paused it 10 min ago, and 1 message waits")
    assert said["late"][2] == "its oldest message has waited for 2 h, and 9 messages wait"


def test_hosts_that_are_all_drained_are_a_concern() -> None:
    hosts = [Host(host=name, name="", pid=1, leaders=0, drained=True) for name in ("a", "b")]
    assert [(one.act, one.host) for one in concerns([], [], hosts, 0)] == [("undrain_host", "a")]
    assert concerns([], [], [hosts[0].model_copy(update={"drained": False}), hosts[1]], 0) == []


def test_rates_are_of_the_last_seconds_and_begin_anew_after_a_pause() -> None:
    rates = MessageRates()
    assert rates.take(0.0, {"a": 100}) == {"a": None}
    for second in range(1, 8):
        last = rates.take(float(second), {"a": 100 + 10 * second, "b": None})
    assert last == {"a": 10.0, "b": None}
    assert rates.take(8.0, {"a": 170}) == {"a": 8.0}, "over five seconds"
    assert rates.series("a")[0] is None
    assert len(rates.series("a")) == 8 // STEP + 1
    assert rates.take(9.0, {"a": 3}) == {"a": None}, "it began anew"
    assert rates.take(9.0 + PAUSE + 1, {"a": 900}) == {"a": None}, "nobody looked meanwhile"
    assert rates.take(30.0, {}) == {}
    assert rates.series("a") == []
