"""What the peer tests of its API for queues, under its names there; see `tests.agent.test_peer_table`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from streamlease.agent.client import connect
from streamlease.protocol.topics import SharedSubscription
from tests.admin.command import InProcess

QUEUE = "$queue/g/a/#"
SHARED = SharedSubscription.parse(QUEUE)


@pytest.fixture
def cli(tmp_path: Path, embedded_redis_url: str) -> InProcess:
    command = InProcess(tmp_path, embedded_redis_url)
    command.ok("space", "create", "s", "--topics", "a/#", "--streams", "2")
    return command


def names(page: dict[str, Any]) -> list[str]:
    return [group["subscription"] for group in page["groups"]]


def test_basic_crud(cli: InProcess) -> None:
    assert cli.ok("group", "list", "--json").document == {"groups": [], "next": None}
    made = cli.ok("group", "declare", QUEUE, "--from", "earliest", "--json").document
    assert made == {"subscription": QUEUE, "start": "earliest", "created": True}
    (listed,) = cli.ok("group", "list", "--json").document["groups"]
    assert (listed["subscription"], listed["streams"], listed["lag"]) == (QUEUE, 2, 0)
    described = cli.ok("group", "describe", QUEUE, "--json").document
    assert (described["subscription"], described["start"]) == (QUEUE, "earliest")
    assert cli.ok("group", "delete", QUEUE, "--yes", "--json").document["act"] == "delete"
    gone = cli("group", "describe", QUEUE)
    assert (gone.code, "does not exist" in gone.err) == (1, True)
    again = cli("group", "delete", QUEUE, "--yes")
    assert (again.code, "does not exist" in again.err) == (1, True)
    assert cli.ok("group", "list", "--json").document["groups"] == []


def test_duplicate_queue(cli: InProcess) -> None:
    """Declared twice, with another start: the first declaration stays, and the answer says so."""
    assert cli.ok("group", "declare", QUEUE, "--from", "earliest", "--json").document["created"]
    second = cli.ok("group", "declare", QUEUE, "--from", "latest", "--json").document
    assert second == {"subscription": QUEUE, "start": "earliest", "created": False}
    conflict = cli("group", "declare", "$shared/g/a/#")
    assert (conflict.code, "is declared as" in conflict.err) == (1, True)


def test_list_queues(cli: InProcess) -> None:
    """Page by page, with limits 1, 1 and 2; the last page says that it is the last."""
    wanted = [f"$queue/g{number}/a/#" for number in range(4)]
    for name in wanted:
        cli.ok("group", "declare", name)
    seen: list[str] = []
    after: list[str] = []
    for limit, more in (("1", True), ("1", True), ("2", False)):
        page = cli.ok("group", "list", "--limit", limit, *after, "--json").document
        seen += names(page)
        assert (page["next"] is not None) is more
        after = ["--after", str(page["next"])]
    assert seen == wanted
    bad = cli("group", "list", "--after", "no-cursor")
    assert (bad.code, "no-cursor" in bad.err) == (2, True)
    assert cli("group", "list", "--limit", "0").code == 2


def test_404_when_there_is_no_group(tmp_path: Path, embedded_redis_url: str) -> None:
    """On a Redis that nobody has used: lists are empty, and what names a group says that it is unknown."""
    cli = InProcess(tmp_path, embedded_redis_url)
    assert cli.ok("group", "list", "--json").document == {"groups": [], "next": None}
    for words in (
        ["describe", QUEUE], ["history", QUEUE], ["pause", QUEUE], ["delete", QUEUE, "--yes"],
        ["alter", QUEUE, "--max-failures", "2"], ["reset", QUEUE, "--to", "earliest"],
        ["dead-letters", "list", QUEUE],
    ):  # fmt: skip
        outcome = cli("group", *words, "--json")
        assert outcome.code == 1, words
        assert outcome.document["error"]["type"] == "UnknownGroup"
        assert outcome.err.count("\n") == 1


def test_list_with_shared_sub(cli: InProcess) -> None:
    """Listed by the name of the group, by a topic that they select, or by both."""
    cli.ok("space", "create", "t", "--topics", "b/#")
    for name in ("$queue/g/a/#", "$shared/g/b/+", "$shared/h/a/1"):
        cli.ok("group", "declare", name)

    def listed(*words: str) -> list[str]:
        return names(cli.ok("group", "list", *words, "--json").document)

    assert listed("--group", "g") == ["$queue/g/a/#", "$shared/g/b/+"]
    assert listed("--topic", "a/1") == ["$queue/g/a/#", "$shared/h/a/1"]
    assert listed("--group", "g", "--topic", "a/1") == ["$queue/g/a/#"]
    assert listed("--topic", "b/1/2") == []
    assert listed("--group", "nobody") == []


@pytest.mark.parametrize("topic", ["$shared/g/a/1", "$queue/g/a/1", "a/#", "a/+"])
def test_list_with_invalid_match_topic(cli: InProcess, topic: str) -> None:
    outcome = cli("group", "list", "--topic", topic, "--json")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert topic in outcome.document["error"]["message"]


async def test_update_config(embedded_redis_url: str, tmp_path: Path) -> None:
    """Options are changed while a consumer lives: the next leader goes by them, and nothing is lost."""
    cli = InProcess(tmp_path, embedded_redis_url)
    async with connect(embedded_redis_url) as client:
        await client.create_space("s", ["a/#"])
        async with client.publisher() as publisher:
            for number in range(4):
                await publisher.send("a/x", str(number))
        async with client.subscribe(QUEUE.replace("$queue", "$shared"), start="earliest") as reader:
            batch = await anext(reader)
            assert await batch.fail(0, "no") == "retry"
            words = ("group", "alter", "$shared/g/a/#", "--max-failures", "2", "--json")
            changed = await asyncio.to_thread(cli.ok, *words)
            assert changed.document["options"]["max_failures"] == 2
            async with asyncio.timeout(60):
                batch = await anext(reader)
                while await batch.fail(0, "no again") != "passed":
                    batch = await anext(reader)
                rest = await anext(reader)
            assert [message.payload for message in rest.messages] == [b"1", b"2", b"3"]
            await rest.commit()
    history = (await asyncio.to_thread(cli.ok, "group", "history", "$shared/g/a/#", "--json")).document
    assert [act["act"] for act in history["acts"]] == ["step_down"]
    letters = await asyncio.to_thread(cli.ok, "group", "dead-letters", "list", "$shared/g/a/#", "--json")
    (letter,) = letters.document["dead_letters"]
    assert letter["failures"] == 2
    nothing = await asyncio.to_thread(cli, "group", "alter", "$shared/g/a/#")
    assert (nothing.code, "nothing to alter" in nothing.err) == (2, True)
