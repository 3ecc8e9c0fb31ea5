"""What can cost data asks first; where nobody can answer it needs ``--yes``, and says so in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from tests.admin.command import Command, InProcess

SUB = "$shared/g/flights/#"


@pytest.mark.parametrize(
    "words",
    [
        ["group", "delete", SUB],
        ["group", "delete", SUB, "--force"],
        ["group", "expire", SUB],
        ["group", "release", SUB, "flights.0.0"],
        ["space", "alter", "flights", "--retention", "1d", "--retention-force"],
        ["space", "seal", "flights"],
        ["space", "delete", "flights"],
    ],
    ids=" ".join,
)
def test_nothing_is_done_without_yes(
    flights: Command, store: redis.Redis, tmp_path: Path, words: list[str]
) -> None:
    flights.ok("group", "declare", SUB)
    before = {key: store.dump(key) for key in store.keys("*")}
    cli = InProcess(tmp_path, flights.url)
    for more in ([], ["--json"]):
        refused = cli(*words, *more)
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        assert refused.err.endswith("confirm with --yes\n")
    assert {key: store.dump(key) for key in store.keys("*")} == before


def test_a_reset_is_only_shown_unless_it_is_to_be_executed(
    flights: Command, store: redis.Redis, tmp_path: Path
) -> None:
    flights.ok("publish", "flights/a", text="1\n")
    flights.ok("group", "declare", SUB)
    cli = InProcess(tmp_path, flights.url)
    shown = cli.ok("group", "reset", SUB, "--to", "earliest", "--json").document
    assert (shown["dry_run"], sum(row["again"] for row in shown["streams"])) == (True, 1)
    assert cli.ok("group", "list", "--json").document["groups"][0]["lag"] == 0
