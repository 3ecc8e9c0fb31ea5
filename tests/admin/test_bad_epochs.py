"""Bad epochs and diffs on the command line: one line with value and remedy, and no message is written."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
import redis

from streamlease.protocol.epochs.order import HIGHEST_EPOCH
from tests.admin.command import Command

ONE = ("publish", "one/a", "--publisher", "p")
FIELDS = (*ONE, "--format", "jsonl", "--epoch-column", "e")
DIFFS = ("publish", "col/a", "--format", "jsonl", "--diff-column", "d")
INTEGERS = f"give integers from 0 to {HIGHEST_EPOCH}"
NO_DIFF = "is no whole number of 64 bits: give one, such as 1 or -1"


class Bad(NamedTuple):
    """A command, what it gets, its exit code, and what it says."""

    words: tuple[str, ...]
    text: str
    code: int
    said: str
    enters: bool = False
    """Whether its publisher must enter to find out, and leaves again."""


CASES = [
    *(
        Bad((*ONE, "--epoch", epoch), "a\n", 2, said)
        for epoch, said in (
            ("x", f"--epoch: epoch 'x': {INTEGERS}"),
            ("", f"--epoch: epoch '': {INTEGERS}"),
            ("1.5", f"--epoch: epoch '1.5': {INTEGERS}"),
            ("-1", f"--epoch: epoch [-1]: {INTEGERS}"),
            (str(HIGHEST_EPOCH + 1), INTEGERS),
            ("1,2", "--epoch: epoch [1, 2] has 2 dimensions, and the space 1: give one integer, such as 0"),
        )
    ),
    Bad(
        ("publish", "two/a", "--publisher", "p", "--epoch", "4"),
        "a\n",
        2,
        "2: give 2 integers, such as (0, 0)",
    ),
    *(
        Bad(FIELDS, record + "\n", 2, f"line 1: epoch {said}")
        for record, said in (
            ('{"e": -1}', f"-1: {INTEGERS}"),
            ('{"e": "x"}', f"'x': {INTEGERS}"),
            ('{"e": 1.5}', f"1.5: {INTEGERS}"),
            ('{"e": null}', f"None: {INTEGERS}"),
            ('{"e": true}', f"True: {INTEGERS}"),
            ('{"e": 99999999999999999999}', f"99999999999999999999: {INTEGERS}"),
            ('{"e": [1, 2]}', "[1, 2] has 2 dimensions, and the space 1: give one integer"),
        )
    ),
    Bad(FIELDS, "{}\n", 2, "line 1 has no field 'e'"),
    Bad((*ONE, "--epoch-column", "e"), "a\n", 2, "--epoch-column 'e' needs fields: use --format jsonl"),
    Bad((*FIELDS, "--epoch", "3"), '{"e": 1}\n', 2, "two ways to give epochs: leave one out"),
    Bad(ONE, "a\n", 2, "give --epoch N or --epoch-column COL"),
    Bad(
        (*ONE, "--epoch", "4"),
        "a\n",
        1,
        "line 1: publisher p holds 5 and cannot send at epoch 4: what was given up",
        enters=True,
    ),
    Bad(("publish", "one/a", "--epoch", "4"), "a\n", 2, "give --publisher NAME too"),
    Bad(
        ("publish", "one/a"),
        "a\n",
        2,
        "space one has epochs, so its messages come from publishers with a name",
    ),
    Bad(
        ("publish", "one/a", "--publisher", "p q", "--epoch", "4"), "a\n", 2, "publisher 'p q' is not a name"
    ),
    Bad(
        ("publish", "plain/a", "--publisher", "p", "--epoch", "4"),
        "a\n",
        2,
        "space plain has no epochs: leave",
    ),
    Bad(
        ("publish", "no/a", "--publisher", "p", "--epoch", "4"),
        "a\n",
        1,
        "no space has topics that match 'no/a'",
    ),
    *(
        Bad(("publish", "col/a", "--diff", diff), "a\n", 2, said)
        for diff, said in (
            ("0", "a diff of 0 changes nothing: leave the message out, or give another diff"),
            ("1.5", "not '1.5'"),
            ("", "not ''"),
            (str(1 << 63), NO_DIFF),
        )
    ),
    *(
        Bad(DIFFS, record + "\n", 2, said)
        for record, said in (
            ('{"d": 0}', "line 1: a diff of 0 changes nothing"),
            ('{"d": 1.5}', f"line 1: diff 1.5 {NO_DIFF}"),
            ('{"d": null}', f"line 1: diff None {NO_DIFF}"),
            ('{"d": true}', f"line 1: diff True {NO_DIFF}"),
            ('{"d": 99999999999999999999}', NO_DIFF),
            ('{"d": "x"}', "field 'd' of line 1 is 'x': give a whole number"),
            ("{}", "line 1 has no field 'd'"),
        )
    ),
    Bad((*DIFFS, "--diff", "2"), '{"d": 1}\n', 2, "two ways to give diffs: leave one out"),
    Bad(
        ("publish", "col/a", "--diff-column", "d"),
        "a\n",
        2,
        "--diff-column 'd' needs fields: use --format jsonl",
    ),
    Bad(
        ("publish", "plain/a", "--diff", "1"),
        "a\n",
        2,
        "space plain is no collection, so its messages have no diff",
    ),
    *(
        Bad(("consume", filter, "--epochs", mode, "--timeout", "1"), "", 2, said)
        for filter, mode, said in (
            ("one/#", "weird", "--epochs 'weird' is unknown: use atomic, eager or off"),
            ("plain/#", "atomic", "space plain, which has no epochs: narrow the filter, or read the streams"),
            ("plain/#", "eager", "space plain, which has no epochs: narrow the filter, or read the streams"),
            ("$shared/g/one/#", "eager", "--epochs eager reads without a group: give a filter, such as '#'"),
        )
    ),
    *(
        Bad(("collection", filter), "", code, said)
        for filter, code, said in (
            ("plain/#", 2, "space plain, which is no collection: narrow the filter"),
            ("no/#", 1, "no space has topics that match the filter 'no/#'"),
            ("a/#/b", 2, "'a/#/b'"),
            ("$shared/g/col/#", 2, "names a group"),
        )
    ),
    Bad(
        ("epochs", "show", "plain"),
        "",
        2,
        "space plain has no epochs: it was made without --epochs; make another",
    ),
    Bad(("epochs", "show", "no"), "", 1, "there is no space 'no'"),
    Bad(("epochs", "abort", "one", "q", "--yes"), "", 2, "space one has no publisher 'q' now"),
    Bad(("epochs", "abort", "one", "p", "--yes"), "", 2, "publisher 'p' now; it left in good order"),
    *(
        Bad(("space", "create", "new", "--topics", "new/#", *words), "", 2, said)
        for words, said in (
            (("--epochs", "0"), "epochs of 0 dimensions: give 1 to 8"),
            (("--epochs", "9"), "epochs of 9 dimensions: give 1 to 8"),
            (("--epochs", "-1"), "epochs of -1 dimensions: give 1 to 8"),
            (("--epochs", "x"), "not 'x'"),
            (("--collection", "--compact-after", "1m"), "so its entries are never merged: leave the age out"),
        )
    ),
    Bad(
        ("space", "create", "one", "--topics", "one/#", "--epochs", "2"),
        "",
        1,
        "exists with epochs of 1 dimension",
    ),
    Bad(("space", "create", "col", "--topics", "col/#"), "", 1, "space col exists as a collection"),
]


@pytest.fixture
def spaces(command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    for name, options in (
        ("one", ("--epochs", "1")),
        ("two", ("--epochs", "2")),
        ("plain", ()),
        ("col", ("--collection",)),
    ):
        command.ok("space", "create", name, "--topics", f"{name}/#", *options)
    command.ok(*ONE, "--epoch", "4", text="a\n")
    monkeypatch.setenv("STREAMLEASE_REDIS_URL", command.url)
    return command


def messages(store: redis.Redis) -> dict[bytes, Any]:
    """All that stands in logs and staged logs, and the definitions of spaces."""
    logs = {name: store.xrange(name) for name in store.scan_iter("sl:{*}:log") if b"{g:" not in name}
    return {**logs, b"spaces": store.hgetall("sl:{spaces}:defs")}


def lines(store: redis.Redis) -> dict[bytes, list[Any]]:
    """What publishers have said, in each space."""
    found = {}
    for name in store.scan_iter("sl:*:lines"):
        found[name] = [json.loads(fields[b"l"]) for _, fields in store.xrange(name)]
    return found


@pytest.mark.timeout(300)
def test_each_is_refused_in_one_line(spaces: Command, store: redis.Redis) -> None:
    before, said = messages(store), lines(store)
    assert before and len(CASES) == 57
    (of_one,) = said
    for case in CASES:
        outcome = spaces(*case.words, "--json", text=case.text)
        assert outcome.code == case.code, (case, outcome)
        assert outcome.err.startswith("error: ") and outcome.err.count("\n") == 1, (case, outcome)
        assert case.said in outcome.err and len(outcome.err) < 600, (case, outcome.err)
        assert f"error: {outcome.document['error']['message']}\n" == outcome.err, case
        assert messages(store) == before, case
        if case.enters:
            entered, left = lines(store)[of_one][len(said[of_one]) :]
            assert (entered["k"], left["k"], left["upper"], left["parts"]) == ("enter", "leave", [], []), case
            said = lines(store)
        assert lines(store) == said, case
