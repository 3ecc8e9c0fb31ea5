"""``--watch``: views again and again."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from streamlease.admin.documents import check
from tests.admin.command import Command, finish, lines_of
from tests.conftest import MakeServer

SUB = "$shared/g/flights/#"


def test_each_look_is_a_document_until_ctrl_c(flights: Command) -> None:
    flights.ok("group", "declare", SUB, "--from", "earliest")
    process = flights.start("group", "list", "--watch", "0.05", "--json")
    (first,) = lines_of(process, 1)
    flights.ok("publish", "flights/a", text="1\n")
    lag = json.loads(first)["groups"][0]["lag"]
    assert lag == 0
    while lag == 0:
        (text,) = lines_of(process, 1)
        check("group list", text)
        lag = json.loads(text)["groups"][0]["lag"]
    assert lag == 1
    assert finish(process, signal.SIGINT).code == 130


def test_tables_are_parted_by_an_empty_line(flights: Command) -> None:
    process = flights.start("space", "list", "--watch", "0.05")
    lines = lines_of(process, 7)
    assert lines[0].split() == ["SPACE", "STREAMS", "TOPICS"]
    assert lines[2].split() == ["flights", "4", "flights/#"]
    assert lines[3] == ""
    assert lines[4:7] == lines[:3]
    assert finish(process, signal.SIGINT).code == 130


def test_who_reads_no_more_ends_it(flights: Command) -> None:
    process = flights.start("status", "--watch", "0.05", "--json")
    lines_of(process, 1)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(60) == 141


def test_a_redis_that_is_gone_for_a_while_is_told_and_waited_for(
    tmp_path: Path, make_redis_server: MakeServer
) -> None:
    server = make_redis_server(persistent=True)
    command = Command(tmp_path, server.url)
    process = command.start("group", "list", "--watch", "0.05", "--json")
    assert "groups" in json.loads(lines_of(process, 1)[0])
    server.kill()
    while "error" not in (seen := json.loads(lines_of(process, 1)[0])):
        continue
    assert seen["error"]["type"] == "StoreUnavailable"
    server.start()
    while "groups" not in json.loads(lines_of(process, 1)[0]):
        continue
    assert finish(process, signal.SIGINT).code == 130


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "often"])
def test_a_time_that_makes_no_sense_is_refused(command: Command, seconds: str) -> None:
    outcome = command("status", "--watch", seconds)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
