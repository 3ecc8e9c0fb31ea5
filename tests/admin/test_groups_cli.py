"""``streamlease group``, ``status``, ``redis`` and the help."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.admin.command import Command, Process, finish, lines_of, until

SUB = "$shared/g/flights/#"


def describe(command: Command) -> dict[str, Any]:
    found: dict[str, Any] = command.ok("group", "describe", SUB, "--json").document
    return found


@contextlib.contextmanager
def consumer(command: Command, *words: str) -> Iterator[Process]:
    process = command.start("consume", SUB, *words)
    try:
        yield process
    finally:
        assert finish(process).code == 0


def has_streams(command: Command, borrowers: int) -> dict[str, Any] | None:
    """The group, once it is declared and all its streams are granted to so many borrowers."""
    if command("group", "describe", SUB).code:
        return None
    group = describe(command)
    granted = all(stream["state"] == "granted" for stream in group["streams"])
    return group if len(group["borrowers"]) == borrowers and granted and group["state"] == "stable" else None


def test_a_declared_group_has_a_lag_before_its_first_consumer(flights: Command) -> None:
    flights.ok("publish", "flights/a", text="1\n2\n3\n")
    made = flights.ok("group", "declare", SUB, "--from", "earliest", "--json").document
    assert made == {"subscription": SUB, "start": "earliest", "created": True}
    assert flights.ok("group", "declare", SUB, "--json").document == {**made, "created": False}
    group = describe(flights)
    assert (group["leader"], group["state"], group["borrowers"]) == (None, "no leader", [])
    assert sorted(stream["lag"] for stream in group["streams"]) == [0, 0, 0, 3]
    for stream in group["streams"]:
        assert set(stream) == {
            "stream", "owner", "lease_epoch", "state", "since", "committed", "next", "lag", "lag_seconds",
            "why",
        }  # fmt: skip
        assert stream["lag_seconds"] == 0 if stream["lag"] == 0 else 0 < stream["lag_seconds"] < 60
    (listed,) = flights.ok("group", "list", "--json").document["groups"]
    assert 0 < listed.pop("lag_seconds") < 60
    assert listed == {
        "subscription": SUB, "state": "no leader", "paused_since": None, "expired_at": None, "leader": None,
        "term": 0, "streams": 4, "lag": 3,
    }  # fmt: skip


def test_an_option_that_was_never_set_is_told_like_any_other_absent_value(flights: Command) -> None:
    flights.ok("group", "declare", SUB)
    said = flights.ok("group", "alter", SUB, "--max-failures", "2").out
    assert said.startswith(
        f"{SUB}: strategy -, revocation_timeout_ms -, on_poison dead-letter, max_failures 2,"
    )
    assert "None" not in said


def test_the_lag_of_a_stream_that_is_gone_is_unknown(flights: Command, store: redis.Redis) -> None:
    with consumer(flights):
        until(lambda: has_streams(flights, 1))
    store.delete("sl:{flights.0.1}:meta")
    lags = {stream["stream"]: stream["lag"] for stream in describe(flights)["streams"]}
    assert lags == {"flights.0.0": 0, "flights.0.1": None, "flights.0.2": 0, "flights.0.3": 0}
    assert flights.ok("status", "--json").document["groups"][0]["lag"] is None


def test_a_live_group_is_described_by_its_leader(flights: Command) -> None:
    flights.ok("publish", "flights/a", text="1\n2\n")
    with consumer(flights, "--from", "earliest") as process:
        lines_of(process, 2)
        group = until(lambda: has_streams(flights, 1))
        assert group["leader"]["host"].startswith("embedded-")
        assert (group["leader"]["term"], group["moves"]) == (1, 0)
        (borrower,) = group["borrowers"]
        told = {"id", "name", "query", "host", "streams", "drained", "silent_seconds", "last_seen"}
        assert set(borrower) == told
        assert borrower["streams"] == 4
        age = datetime.now(UTC) - datetime.fromisoformat(borrower["last_seen"])
        assert -1 < age.total_seconds() < 5
        assert {stream["owner"] for stream in group["streams"]} == {borrower["name"]}
        text = flights.ok("group", "describe", SUB).out
        assert "stable; led by embedded-" in text
        view = flights.ok("status", "--json").document
        assert view["groups"] == [
            {
                "subscription": SUB, "state": "stable", "leader": group["leader"], "term": 1,
                "borrowers": 1, "streams": 4, "lag": 0,
            }
        ]  # fmt: skip
        assert view["spaces"][0]["messages"] == 2
        assert "flights/#" in flights.ok("status").out
    assert describe(flights)["state"] == "no leader"


def test_a_dry_run_of_a_rebalance_changes_nothing(flights: Command, store: redis.Redis) -> None:
    with consumer(flights):
        before = until(lambda: has_streams(flights, 1))
        journal = store.xlen("sl:{g:g/flights/#}:journal")
        planned = flights.ok("group", "rebalance", SUB, "--dry-run", "--json").document
        assert (planned["dry_run"], planned["grants"], planned["revokes"]) == (True, [], [])
        assert planned["targets"] == {before["borrowers"][0]["name"]: 4}
        assert store.xlen("sl:{g:g/flights/#}:journal") == journal
        assert "no moves" in flights.ok("group", "rebalance", SUB, "--dry-run").out
        assert not flights.ok("group", "rebalance", SUB, "--json").document["dry_run"]
        (_, fields), *_ = store.xrevrange("sl:{g:g/flights/#}:journal", count=1)
        assert b'"act":"rebalance"' in fields[b"r"]
        assert b"@" in fields[b"r"]


def test_after_a_step_down_another_term_leads_and_the_streams_stay(flights: Command) -> None:
    with consumer(flights):
        before = until(lambda: has_streams(flights, 1))
        done = flights.ok("group", "step-down", SUB, "--json").document
        assert done["former"] == before["leader"]
        assert done["leader"]["term"] == before["leader"]["term"] + 1
        after = until(lambda: has_streams(flights, 1))
        assert [s["owner"] for s in after["streams"]] == [s["owner"] for s in before["streams"]]
        assert after["moves"] == 0


def test_an_act_without_a_leader_makes_one_and_a_step_down_needs_none(flights: Command) -> None:
    flights.ok("group", "declare", SUB)
    outcome = flights("group", "step-down", SUB)
    assert outcome.code == 1
    assert outcome.err == f"error: group '{SUB}' has no leader now: there is nobody to step down\n"
    flights.ok("group", "rebalance", SUB)
    (act,) = flights.ok("group", "history", SUB, "--json").document["acts"]
    assert (act["act"], act["outcome"]) == ("rebalance", "done")


def test_the_embedded_redis_is_found_without_being_named(tmp_path: Path) -> None:
    command = Command(tmp_path)
    stopped = command("redis", "status", "--json")
    assert (stopped.code, stopped.document["running"]) == (1, False)
    try:
        url = command.ok("redis", "start", "--json").document["url"]
        assert command.ok("redis", "start", "--json").document["url"] == url
        assert command.ok("redis", "status", "--json").document["url"] == url
        shown = command.ok("redis", "status").out
        secret = url.partition("//:")[2].partition("@")[0]
        assert shown.startswith(url.replace(secret, "***"))
        assert secret not in shown
        assert command.ok("redis", "status", "--url").out == f"{url}\n"
        command.ok("space", "create", "here", "--topics", "here/#")
        assert "here" in command.ok("space", "list").out
        assert command("space", "list", "--redis", "redis://127.0.0.1:1").code == 1
    finally:
        assert command.ok("redis", "stop", "--json").document["stopped"] is True
    assert command.ok("redis", "stop", "--json").document["stopped"] is False


def test_a_port_that_cannot_be_is_refused(tmp_path: Path) -> None:
    outcome = Command(tmp_path)("redis", "start", "--port", "70000")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "70000" in outcome.err


def test_help_loads_no_client(tmp_path: Path) -> None:
    help = Command(tmp_path)("--help", PYTHONPROFILEIMPORTTIME="1")
    assert help.code == 0
    assert "consume" in help.out
    loaded = {line.rpartition("|")[2].strip() for line in help.err.splitlines()}
    assert not loaded & {"redis", "rq", "pyarrow"}


@pytest.mark.parametrize("words", [["--version"], ["space", "--help"], ["consume", "-h"]])
def test_help_and_version_succeed(tmp_path: Path, words: list[str]) -> None:
    assert Command(tmp_path)(*words).code == 0
