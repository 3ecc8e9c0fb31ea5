"""Operators' acts by the command, on a real server: what they do, what they say, and what is recorded."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
import redis

from streamlease.agent.client import connect
from tests.admin.command import Command, InProcess, Process, finish, lines_of, until
from tests.admin.test_groups_cli import SUB, consumer, describe, has_streams


@pytest.fixture
def flights(tmp_path: Path, embedded_redis_url: str) -> Command:
    """The command in this process, with a space of four streams for ``flights/#``."""
    command = InProcess(tmp_path, embedded_redis_url)
    command.ok("space", "create", "flights", "--topics", "flights/#", "--streams", "4")
    return command


def publish(command: Command, *payloads: str) -> None:
    assert command.url is not None

    async def main() -> None:
        async with connect(command.url) as client, client.publisher() as publisher:
            for payload in payloads:
                await publisher.send("flights/a", payload.encode())

    asyncio.run(main())


def payloads(process: Process, count: int) -> list[str]:
    return [text.partition("\t")[2] for text in lines_of(process, count)]


def owners(command: Command) -> dict[str, str]:
    return {s["stream"]: s["owner"] for s in describe(command)["streams"]}


def committed(command: Command) -> int:
    return sum(s["committed"] for s in describe(command)["streams"])


def acts(command: Command) -> list[tuple[str, str]]:
    found = command.ok("group", "history", SUB, "--json").document["acts"]
    assert all("@" in act["who"] and act["at"] for act in found if act["who"] != "the leader")
    return [(act["act"], act["outcome"].partition(":")[0]) for act in found]


@pytest.mark.timeout(400)
def test_acts_on_the_streams_of_two_consumers(flights: Command) -> None:
    with consumer(flights, "--from", "earliest"), consumer(flights):
        group = until(lambda: has_streams(flights, 2))
        one, other = (borrower["name"] for borrower in group["borrowers"])
        stream = next(s for s, owner in owners(flights).items() if owner == one)

        moved = flights.ok("group", "move", SUB, stream, "--to", other, "--json").document
        assert (moved["from"], moved["to"]) == (one, other)
        until(lambda: owners(flights)[stream] == other)
        assert [s["why"] for s in describe(flights)["streams"] if s["stream"] == stream] == [
            "moved here by an operator"
        ]
        lease_epochs = {s["stream"]: s["lease_epoch"] for s in describe(flights)["streams"]}
        again = flights.ok("group", "move", SUB, stream, "--to", other).out
        assert again == f"{stream} is with {other} already, and stays there\n"
        assert {s["stream"]: s["lease_epoch"] for s in describe(flights)["streams"]} == lease_epochs

        drained = flights.ok("group", "drain", SUB, other, "--json").document
        assert drained["borrower"] == other
        until(lambda: set(owners(flights).values()) == {one})
        refused = flights("group", "drain", SUB, one)
        assert (refused.code, "is the last one" in refused.err) == (1, True)
        flights.ok("group", "drain", SUB, other, "--undo")
        until(lambda: set(owners(flights).values()) == {one, other})

        free = next(s for s, owner in owners(flights).items() if owner == one)
        assert flights("group", "release", SUB, free, "--json").code == 2, "it asks first"
        lease_epoch = {s["stream"]: s["lease_epoch"] for s in describe(flights)["streams"]}[free]
        assert flights.ok("group", "release", SUB, free, "--yes", "--json").document["from"] == one
        until(
            lambda: {s["stream"]: s["lease_epoch"] for s in describe(flights)["streams"]}[free] > lease_epoch
        )

        for words in (["move", SUB, "flights.0.9", "--to", one], ["move", SUB, free, "--to", one + "x"]):
            outcome = flights("group", *words)
            assert (outcome.code, "nearest: " in outcome.err) == (1, True)
        assert acts(flights) == [
            ("move", "done"),
            ("move", "done"),
            ("drain", "done"),
            ("drain", "refused"),
            ("undrain", "done"),
            ("release", "done"),
            ("move", "refused"),
            ("move", "refused"),
        ]
        assert "refused: " in flights.ok("group", "history", SUB).out
    delete(flights)
    assert flights.ok("group", "list", "--json").document == {"groups": [], "next": None}


def delete(flights: Command) -> None:
    """Delete the group: with force where the goodbye of its last consumer came to a leader that had ended.

    A leader that takes over waits whether such a consumer comes back, and each command here has its own.
    """
    outcome = flights("group", "delete", SUB, "--yes", "--json")
    if outcome.code:
        assert re.search(r"has (1 borrower|\d+ borrowers), such as", outcome.err)
        outcome = flights.ok("group", "delete", SUB, "--yes", "--force", "--json")
    assert outcome.document["act"] == "delete"


@pytest.mark.timeout(400)
def test_a_paused_group_gets_nothing_and_is_reset_and_goes_on(flights: Command, tmp_path: Path) -> None:
    publish(flights, "1", "2", "3")
    with consumer(flights, "--from", "earliest") as process:
        assert payloads(process, 3) == ["1", "2", "3"]
        until(lambda: committed(flights) == 3)
        paused = flights.ok("group", "pause", SUB, "--until", "1h", "--json").document
        until(lambda: {s["state"] for s in describe(flights)["streams"]} == {"free"})
        group = describe(flights)
        assert (group["state"], group["paused"]["until"]) == ("paused", paused["until"])
        assert {s["why"] for s in group["streams"]} == {"the group is paused"}
        publish(flights, "4")

        shown = flights.ok("group", "reset", SUB, "--shift", "-2", "--json").document
        assert (shown["dry_run"], sum(row["again"] for row in shown["streams"])) == (True, 2)
        assert committed(flights) == 3
        stream = next(s["stream"] for s in group["streams"] if s["committed"])
        for text, why in [
            (
                f"stream,offset\n{stream},1\nflights.0.7,0\n",
                "line 3: the group has no stream flights.0.7; nearest",
            ),
            (f"{stream},1\n{stream},2\n", f"line 2: stream {stream} stands in line 1 already"),
            (f'{{\n"{stream}": 99}}', f"line 2: stream {stream} has offsets 0 to 4, not 99"),
        ]:
            file = tmp_path / "offsets"
            file.write_text(text)
            outcome = flights("group", "reset", SUB, "--file", str(file), "--execute")
            assert outcome.code == 2
            assert why in outcome.err
            assert outcome.err.endswith("nothing was changed\n")
        file.write_text(json.dumps([{"stream": stream, "offset": 1}]))
        done = flights.ok("group", "reset", SUB, "--file", str(file), "--execute", "--json").document
        assert done["streams"] == [
            {"stream": stream, "from": 3, "to": 1, "again": 2, "skipped": 0, "note": ""}
        ]
        flights.ok("group", "resume", SUB)
        assert payloads(process, 3) == ["2", "3", "4"]
        until(lambda: committed(flights) == 4)
        flights.ok("group", "reset", SUB, "--to", "earliest", "--execute")
        assert payloads(process, 4) == ["1", "2", "3", "4"]
    assert acts(flights) == [("pause", "done"), ("reset", "done"), ("resume", "done"), ("reset", "done")]


@pytest.mark.timeout(400)
def test_acts_without_consumers_or_leader_are_done_by_a_leader_made_for_them(
    flights: Command, store: redis.Redis
) -> None:
    publish(flights, "1", "2", "3")
    flights.ok("group", "declare", SUB, "--from", "earliest")
    flights.ok("group", "pause", SUB)
    assert describe(flights)["state"] == "paused"
    flights.ok("group", "resume", SUB)
    late = flights.ok("group", "reset", SUB, "--to", "latest", "--execute", "--json").document
    assert sum(row["skipped"] for row in late["streams"]) == 3
    back = flights.ok("group", "reset", SUB, "--to", "1h", "--json").document
    assert sum(row["again"] for row in back["streams"]) == 3
    flights.ok("group", "expire", SUB, "--yes")
    assert describe(flights)["expired_at"] is not None
    refused = flights("group", "resume", SUB)
    assert (refused.code, refused.err) == (1, "error: group g/flights/# is not paused\n")
    assert [act for act, _ in acts(flights)] == ["pause", "resume", "reset", "expire", "resume"]
    unknown = flights("group", "pause", "$shared/g/flight/#")
    assert unknown.code == 1
    assert f"nearest: {SUB}" in unknown.err
    # A leader that is dead and has not expired: the answer comes in time and says why.
    seconds, _ = store.time()
    dead = {"host": "dead", "mailbox": "dead", "renewed_at": seconds * 1000, "ttl": 10**9}
    store.hset("sl:{g:g/flights/#}:leader", mapping=dead)
    silent = flights("group", "pause", SUB)
    assert silent.code == 1
    assert "host dead did not answer 'pause' within 4.5 s" in silent.err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["reset", SUB], "say where the group goes on, in one way: --to, --shift or --file"),
        (["reset", SUB, "--to", "yesterday"], "--to 'yesterday' is no point in a stream: use earliest"),
        (["reset", SUB, "--file", "/no/such/file"], "cannot read /no/such/file"),
        (["pause", SUB, "--until", "soon"], "--until 'soon' is neither a time such as"),
        (["pause", SUB, "--until", "2020-01-01T00:00:00Z"], "has passed: give a later time"),
        (["drain", SUB], "name what is drained: 'drain SUB BORROWER', or 'drain --host HOST'"),
        (["drain", "--host", "nobody"], "no leader host is called nobody; there are none"),
        (["delete", SUB], "is deleted with its progress and its history: confirm with --yes"),
    ],
)
def test_what_makes_no_sense_is_refused(flights: Command, words: list[str], why: str) -> None:
    flights.ok("group", "declare", SUB)
    outcome = flights("group", *words)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert why in outcome.err


@pytest.mark.timeout(400)
def test_a_drained_host_hands_its_leaders_to_another(flights: Command) -> None:
    hosts: list[Any] = []
    try:
        hosts.append(flights.start("serve", "--name", "one", "--http-port", "0"))
        until(lambda: flights.ok("status", "--json").document["hosts"])
        with consumer(flights, "--from", "earliest"):
            group = until(lambda: has_streams(flights, 1))
            assert group["leader"]["host"].startswith("one-")
            alone = flights("group", "drain", "--host", "one")
            assert (alone.code, "is the last one that leads" in alone.err) == (1, True)
            hosts.append(flights.start("serve", "--name", "two", "--http-port", "0"))
            until(lambda: flights("group", "drain", "--host", "one").code == 0)
            until(lambda: ((describe(flights)["leader"] or {}).get("host") or "").startswith("two-"))
            until(lambda: has_streams(flights, 1))
            assert ("step_down", "done") in acts(flights)
            flights.ok("group", "drain", "--host", "one", "--undo")
    finally:
        for host in hosts:
            finish(host)
