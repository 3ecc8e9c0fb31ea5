"""``streamlease consume --epochs``: lines of messages and of frontiers, by the command alone."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.admin.command import SCRIPT, Command, checked, finish, lines_of


@pytest.fixture
def clicks(command: Command) -> Command:
    """The command, with a space of two streams and epochs."""
    command.ok("space", "create", "clicks", "--topics", "clicks/#", "--streams", "2", "--epochs", "1")
    return command


def publish(command: Command, *rows: tuple[int, str], name: str = "ingest") -> None:
    """Epochs and texts, in the order of the epochs; all of them are given up at the end."""
    text = "".join(json.dumps({"n": epoch, "text": text}) + "\n" for epoch, text in rows)
    words = ("publish", "clicks/t", "--publisher", name, "--epoch-column", "n", "--format", "jsonl")
    outcome = command(*words, text=text)
    assert outcome.code == 0, outcome


def told(line: str) -> Any:
    """A line, a message as its epoch and text."""
    document = json.loads(line)
    return (document["epoch"], json.loads(document["payload"])["text"]) if "topic" in document else document


def test_whole_epochs_and_their_frontier(clicks: Command) -> None:
    publish(clicks, (0, "a"), (0, "b"), (2, "c"))
    words = ("consume", "clicks/#", "--epochs", "atomic", "--from", "earliest", "--json")
    process = clicks.start(*words)
    lines = lines_of(process, 3)
    while told(lines[-1]) != {"frontier": [[3]]}:
        lines += lines_of(process, 1)
    outcome = finish(process)
    assert (outcome.code, clicks.log.read_text()) == (0, "")
    checked(words, outcome)
    found = [told(line) for line in lines]
    assert sorted(one for one in found if isinstance(one, tuple)) == [([0], "a"), ([0], "b"), ([2], "c")]
    for place, one in enumerate(found):
        if isinstance(one, dict):
            (lower,) = one["frontier"][0]
            assert all(other[0][0] >= lower for other in found[place:] if isinstance(other, tuple))


def test_who_comes_late_is_told_where_it_begins(clicks: Command) -> None:
    publish(clicks, (0, "a"))
    early = clicks.start("consume", "clicks/#", "--epochs", "atomic", "--from", "earliest", "--json")
    assert [told(line) for line in lines_of(early, 2)] == [([0], "a"), {"frontier": [[1]]}]
    finish(early)
    process = clicks.start("consume", "clicks/#", "--epochs", "atomic", "--json")
    assert told(lines_of(process, 1)[0]) == {"lower": [[1]], "upper": [[0]]}
    publish(clicks, (1, "b"))
    assert [told(line) for line in lines_of(process, 2)] == [([1], "b"), {"frontier": [[2]]}]
    assert finish(process).code == 0


def test_eager_lines_say_who_staged_and_what_was_aborted(clicks: Command) -> None:
    words = ("consume", "clicks/#", "--epochs", "eager", "--json")
    process = clicks.start(*words)
    assert told(lines_of(process, 1)[0]) == {"lower": [[0]], "upper": []}
    sending = [str(SCRIPT), "publish", "clicks/t", "--publisher", "lost", "--epoch", "0"]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(sending, stdin=subprocess.PIPE, env=clicks.environment, stderr=quiet) as sender:
        assert sender.stdin is not None
        sender.stdin.write(b"dropped\n")
        sender.stdin.flush()
        (line,) = lines_of(process, 1)
        message = json.loads(line)
        assert (message["payload"], message["epoch"], message["offset"]) == ("dropped", [0], None)
        assert (message["publisher"], message["incarnation"]) == ("lost", 1)
        clicks.ok("epochs", "abort", "clicks", "lost", "--yes")
        sender.kill()
    (line,) = lines_of(process, 1)
    assert told(line) == {"aborted": {"publisher": "lost", "incarnation": 1, "epochs": [[0]]}}
    outcome = finish(process)
    assert outcome.code == 0
    checked(words, outcome)


def test_people_read_it_too(clicks: Command) -> None:
    publish(clicks, (0, "a"))
    process = clicks.start("consume", "clicks/#", "--epochs", "atomic", "--from", "earliest")
    assert lines_of(process, 2) == ['clicks/t\t{"n": 0, "text": "a"}', "# frontier 1"]
    assert finish(process).code == 0
    process = clicks.start("consume", "clicks/#", "--epochs", "atomic")
    assert lines_of(process, 1) == ["# from 1; begun before: up to 0"]
    assert finish(process).code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("clicks/#", "--epochs", "exact"), "--epochs 'exact' is unknown: use atomic, eager or off"),
        (("$shared/g/clicks/#", "--epochs", "eager"), "--epochs eager reads without a group"),
        (("$shared/g/#", "--epochs", "atomic"), "space plain, which has no epochs"),
        (("#", "--epochs", "eager"), "space plain, which has no epochs"),
    ],
)
def test_nonsense_is_refused_in_one_line(clicks: Command, words: tuple[str, ...], said: str) -> None:
    clicks.ok("space", "create", "plain", "--topics", "plain/#")
    outcome = clicks("consume", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert said in outcome.err and len(outcome.err.splitlines()) == 1


def test_off_is_what_one_gets(clicks: Command) -> None:
    publish(clicks, (0, "a"))
    for words in ((), ("--epochs", "off")):
        (message,) = clicks.ok(
            "consume", "clicks/#", "--from", "earliest", "--count", "1", "--json", *words
        ).documents
        assert (message["epoch"], message["offset"]) == ([0], 0)
        assert "publisher" not in message


def test_a_group_reads_whole_epochs(clicks: Command) -> None:
    publish(clicks, (4, "a"), (4, "b"), (7, "c"))
    group = ("consume", "$shared/g/clicks/#", "--epochs", "atomic", "--timeout", "40")
    lines = clicks.ok(*group, "--from", "earliest", "--count", "2", "--json").out.splitlines()
    assert sorted(str(told(line)) for line in lines if "topic" in line) == ["([4], 'a')", "([4], 'b')"]
    shown = clicks.ok(*group, "--count", "1").out.splitlines()
    assert [line for line in shown if "# frontier" not in line] == ['clicks/t\t{"n": 7, "text": "c"}']
    described = clicks.ok("group", "describe", "$shared/g/clicks/#", "--json").document
    assert [(one["space"], one["lower"]) for one in described["epochs"]] == [("clicks", [[8]])]
    assert "epochs of clicks: up to boundary" in clicks.ok("group", "describe", "$shared/g/clicks/#").out


def test_what_is_printed_in_part_comes_again(clicks: Command) -> None:
    publish(clicks, (4, "a"), (4, "b"))
    group = ("consume", "$shared/g/clicks/#", "--epochs", "atomic", "--timeout", "40", "--json")
    first = clicks(*group, "--from", "earliest", "--count", "1")
    assert "epoch 4 of stream clicks.0" in first.err
    again = [told(line) for line in clicks.ok(*group, "--count", "2").out.splitlines() if "topic" in line]
    assert again == [([4], "a"), ([4], "b")]


def test_the_consumers_of_a_group_read_alike(clicks: Command) -> None:
    assert "is declared" in clicks.ok("group", "declare", "$queue/q/clicks/#", "--epochs", "atomic").out
    outcome = clicks("consume", "$queue/q/clicks/#", "--timeout", "1")
    assert outcome.code != 0
    assert "read whole epochs, and this one has epochs 'off'" in outcome.err
    outcome = clicks("group", "declare", "$queue/q/clicks/#")
    assert outcome.code != 0
    outcome = clicks("group", "declare", "$queue/r/clicks/#", "--epochs", "eager")
    assert outcome.code == 2
