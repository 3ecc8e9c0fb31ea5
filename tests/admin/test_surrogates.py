"""Bytes that are no text, in every word of every command: one line says so, and nothing is a traceback.

Python hands bytes of the command line that are no UTF-8 on as lone surrogates, which nothing can send.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import typer

from streamlease.admin import cli
from tests.admin.command import Command

NO_TEXT = "x\udcff"
SUB = "$shared/g/flights/#"
GOOD = {
    "subscription": SUB,
    "name": "flights",
    "topic": "flights/a",
    "source": "flights/#",
    "stream": "flights.0.0",
    "keys": "plain",
    "publisher": "nobody",
    "--topics": "other/#",
    "--to": "b1",
    "--space": "flights",
    "url": "mqtt://127.0.0.1:1",
    "job": "job.py",
    "query": "0123456789abcdef",
}
"""Values of what a command needs."""

LEFT_OUT = {("ui",), ("demo",), ("redis", "start"), ("redis", "stop"), ("redis", "status")}
"""Commands that would go on, or are about this machine."""

REFUSED = ("--name", "--log-format")
"""What `serve` refuses before it begins."""

NOT_SENT = ("--group", "--metrics-host")
"""A pattern that matches nothing, and what is not used without a port: these calls succeed."""

MORE = {("consume",): ["--timeout", "0.2"], ("import", "redis-stream"): ["--topic", "flights/a"]}


def commands() -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    def walk(group: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from walk(command, (*words, name))
            else:
                yield (*words, name), command.params

    return walk(typer.main.get_command(cli.app), ())


def calls() -> Iterator[list[str]]:
    """Each command with each of its values in turn replaced; switches take none."""
    for words, parameters in commands():
        if words in LEFT_OUT:
            continue
        for tried in parameters:
            option = (tried.opts or [""])[0]
            if getattr(tried, "is_flag", False) or option in ("--redis", "--watch", *NOT_SENT):
                continue
            if words == ("serve",) and option not in REFUSED:
                continue
            call = list(words)
            for one in parameters:
                name = one.opts[0] if one.param_type_name == "option" else one.name
                value = NO_TEXT if one is tried else GOOD.get(name)
                if one is not tried and not one.required:
                    continue
                assert value is not None, (words, name)
                call += [name, value] if one.param_type_name == "option" else [value]
            call += [word for word in MORE.get(words, []) if option not in MORE.get(words, [])]
            yield call


def test_a_word_that_is_no_text_is_refused_in_one_line(
    flights: Command, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert flights.url is not None
    flights.ok("group", "declare", SUB, "--from", "earliest")
    with redis.Redis.from_url(flights.url) as store:
        store.xadd("plain", {"field": "value"})
    monkeypatch.setenv("STREAMLEASE_REDIS_URL", flights.url)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    tried = 0
    for call in calls():
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        words = [*call, "--json"] if tried % 2 and call[0] != "top" else call
        try:
            code = cli.run(words)
        except Exception as error:
            raise AssertionError(words) from error
        out, err = capfd.readouterr()
        assert code in (1, 2), (words, code, out, err)
        assert err.startswith("error: "), (words, err)
        assert err.count("\n") == 1, (words, err)
        assert len(err) < 600, (words, err)
        (out + err).encode()
        tried += 1
    assert tried > 80


def test_a_url_that_is_no_text_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    for url in (f"redis://me:secret{NO_TEXT}@127.0.0.1:1/0", f"redis://{NO_TEXT}:1/0", f"secret{NO_TEXT}"):
        assert cli.run(["status", "--redis", url]) == 2
        out, err = capfd.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith("error: the URL of Redis cannot be encoded as UTF-8")
        assert "secret" not in err
