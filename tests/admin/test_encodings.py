"""Terminals and pipes whose encoding lacks a character: it is written as JSON would, and nothing is lost."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from streamlease.admin.output import aligned, escape_what_has_no_code, line
from tests.admin.command import Program

ASCII = {"PYTHONIOENCODING": "ascii"}


@pytest.mark.slow
def test_commands_print_where_a_terminal_knows_ascii_only(tmp_path: Path, embedded_redis_url: str) -> None:
    program = Program(tmp_path, embedded_redis_url)
    program.ok("space", "create", "fl", "--topics", "flüge/#")
    for words, text, wanted in (
        (("publish", "flüge/Köln"), "größe 🛫\n", "published 1 message to fl\\u00fcge/K\\u00f6ln\n"),
        (
            ("space", "list"),
            "",
            "SPACE   STREAMS   TOPICS\n------------------------------\nfl            1   fl\\u00fcge/#\n",
        ),
        (
            ("consume", "flüge/#", "--from", "earliest", "--count", "1"),
            "",
            "fl\\u00fcge/K\\u00f6ln\tgr\\u00f6\\u00dfe \\ud83d\\udeeb\n",
        ),
    ):
        outcome = program(*words, text=text, **ASCII)
        assert (outcome.code, outcome.err, outcome.out) == (0, "", wanted)
    found = program("consume", "flüge/#", "--from", "earliest", "--count", "1", "--json", **ASCII)
    assert (found.code, found.err) == (0, "") and found.out.isascii()
    assert (found.document["topic"], found.document["payload"]) == ("flüge/Köln", "größe 🛫")


@pytest.mark.parametrize(
    ("encoding", "wanted"),
    [("latin-1", 'ü \\u2192 \\udcff "\\'), ("cp437", 'ü \\u2192 \\udcff "\\'), ("utf-8", 'ü → \\udcff "\\')],
)
def test_only_what_an_encoding_lacks_is_escaped(
    encoding: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    escape_what_has_no_code()
    line('ü → \udcff "\\')
    assert written.getvalue().decode(encoding) == wanted + "\n"
    line(json.dumps("→ 🛫", ensure_ascii=False))
    assert json.loads(written.getvalue().decode(encoding).splitlines()[1]) == "→ 🛫"


@pytest.mark.parametrize(("encoding", "rule"), [("latin-1", "-"), ("cp437", "─"), ("utf-8", "─")])
def test_the_line_below_the_titles_is_one_that_can_be_written(
    encoding: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    aligned(["NAME"], [["a"]], [False], "none")
    assert written.getvalue().decode(encoding) == f"NAME\n{rule * 4}\na\n"


def test_columns_stand_below_each_other_behind_what_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    escape_what_has_no_code()
    aligned(["NAME", "HERE"], [["→", "ü"], ["a", "b"]], [False, False], "none")
    text = written.getvalue().decode("latin-1")
    assert text == "NAME     HERE\n-------------\n\\u2192   ü\na        b\n"


def test_a_stream_of_text_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    escape_what_has_no_code()
    line("ü →")
    assert sys.stdout.getvalue() == "ü →\n"
