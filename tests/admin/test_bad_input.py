"""Every bad value ends in one line that names it, with the right exit code, and writes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from streamlease.admin import cli
from streamlease.admin.redis.server_process import free_port
from tests.admin.command import Command

FILTERS = [
    ("a/#/b", "a/#/b"),
    ("a+", "a+"),
    ("", "empty"),
    ("a\0b", "a\\x00b"),
    ("a/" * 40_000, "80000 bytes"),
    ("\udcff", "\\udcff"),
]
SUBSCRIPTIONS = [
    ("$shared//x", "$shared//x"),
    ("$shared/g", "$shared/g"),
    ("$shared/g/", "$shared/g/"),
    ("$shared/+/x", "$shared/+/x"),
    ("$shared/g/a/#/b", "a/#/b"),
    ("$queue", "$queue"),
]

UNSET = [
    ["status"],
    ["serve", "--http-port", "0"],
    ["publish", "flights/x"],
    ["consume", "flights/#"],
    ["space", "delete", "flights", "--yes"],
    ["group", "pause", "$shared/g/flights/#"],
]
"""What must not go to any other Redis where ``--redis "$VARIABLE"`` is of a variable that is not set."""

LISTENING = [
    ["serve", "--http-port", "0", "--http-host"],
    ["consume", "flights/#", "--metrics-port", "0", "--metrics-host"],
]

CASES: list[tuple[list[str], int, str]] = [
    *((["consume", text], 2, shown) for text, shown in [*FILTERS, *SUBSCRIPTIONS]),
    *((["space", "create", "s", "--topics", text], 2, shown) for text, shown in FILTERS),
    *((["publish", text], 2, shown) for text, shown in [*FILTERS[2:], ("a/+", "a/+"), ("#", "#")]),
    *(
        (["group", act, text], 2, shown)
        for act in ("declare", "describe", "rebalance", "step-down")
        for text, shown in [*SUBSCRIPTIONS, ("flights/#", "flights/#"), ("$share/g/x", "$share/g/x")]
    ),
    (["space", "create", "a b", "--topics", "a"], 2, "a b"),
    (["space", "create", "x" * 64, "--topics", "a"], 2, "x" * 64),
    (["space", "create", "s", "--topics", "a", "--streams", "0"], 2, "0"),
    (["space", "create", "s", "--topics", "a", "--streams", "4097"], 2, "4097"),
    (["space", "create", "s", "--topics", "a", "--streams", "two"], 2, "'two'"),
    (["space", "create", "s"], 2, "--topics"),
    (["space", "create", "s", "--topics", "flights/+"], 1, "flights/#"),
    (["space", "create", "flights", "--topics", "flights/#"], 1, "space flights exists"),
    (["space", "show", "nothere"], 1, "'nothere'"),
    (["space", "delete", "nothere", "--yes"], 1, "'nothere'"),
    (["space", "frobnicate"], 2, "frobnicate"),
    (["publish", "nowhere/x"], 1, "'nowhere/x'"),
    (["publish", "flights/x", "--format", "xml"], 2, "'xml'"),
    (["publish", "flights/x", "--frobnicate"], 2, "--frobnicate"),
    (["publish"], 2, "topic"),
    (["consume", "nowhere/#"], 1, "'nowhere/#'"),
    (["consume", "$shared/g/nowhere/#"], 1, "'nowhere/#'"),
    (["consume", "flights/#", "--count", "0"], 2, "0"),
    (["consume", "flights/#", "--count", "many"], 2, "'many'"),
    (["consume", "flights/#", "--timeout", "0"], 2, "0"),
    (["consume", "flights/#", "--timeout", "nan"], 2, "nan"),
    (["consume", "flights/#", "--from", "yesterday"], 2, "'yesterday'"),
    (["consume", "$shared/g/flights/#", "--from", "yesterday"], 2, "'yesterday'"),
    (["group", "declare", "$shared/g/nowhere"], 1, "'nowhere'"),
    (["group", "declare", "$shared/g/flights/#", "--from", "yesterday"], 2, "'yesterday'"),
    (["group", "describe", "$shared/nobody/flights/#"], 1, "'$shared/nobody/flights/#'"),
    (["group", "rebalance", "$shared/nobody/flights/#"], 1, "'$shared/nobody/flights/#'"),
    (["group", "step-down", "$shared/nobody/flights/#"], 1, "'$shared/nobody/flights/#'"),
    (["group", "step-down", "$shared/g/flights/#", "--timeout", "-1"], 2, "-1"),
    (["status", "--redis", "http://x"], 2, "http://x"),
    (["status", "--redis", "redis://127.0.0.1:port"], 2, "redis://127.0.0.1:***"),
    (["serve", "--http-port", "70000"], 2, "70000"),
    (["serve", "--http-port", "web"], 2, "'web'"),
    (["serve", "--drain-timeout", "0"], 2, "0"),
    (["serve", "--log-format", "xml"], 2, "'xml'"),
    (["serve", "--name", "a b{c}"], 2, "a b{c}"),
    (["frobnicate"], 2, "frobnicate"),
    *(([*words, "--redis", ""], 2, "the URL of Redis is empty") for words in UNSET),
    (["consume", "flights/#", "--from", ""], 2, "--from ''"),
    *(
        ([*words, host], 2, f"cannot listen on {host!a}")
        for words in LISTENING
        for host in ("", "\udcff", "x" * 64, "a..b")
    ),
]


@pytest.fixture
def url(embedded_redis_url: str, flights: Command, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("STREAMLEASE_REDIS_URL", embedded_redis_url)
    return embedded_redis_url


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_bad_values(url: str, store: redis.Redis, capfd: pytest.CaptureFixture[str], as_json: bool) -> None:
    """One process for all cases: a process each would take minutes and show no more."""
    before = store.dbsize()
    for words, code, shown in CASES:
        ended = cli.run([*words, "--json"] if as_json else words)
        out, err = capfd.readouterr()
        assert ended == code, (words, out, err)
        assert err.startswith("error: "), (words, err)
        assert err.count("\n") == 1, (words, err)
        assert shown in err, (words, err)
        assert len(err) < 600, (words, err)
        if as_json:
            error = json.loads(out)["error"]
            assert f"error: {error['message']}\n" == err
            assert error["type"]
        else:
            assert out == ""
        assert store.dbsize() == before, words


COMMANDS = [
    ["space", "create", "s", "--topics", "a"],
    ["space", "list"],
    ["space", "show", "flights"],
    ["space", "delete", "flights", "--yes"],
    ["publish", "flights/a"],
    ["consume", "flights/#"],
    ["consume", "$shared/g/flights/#"],
    ["group", "declare", "$shared/g/flights/#"],
    ["group", "list"],
    ["group", "describe", "$shared/g/flights/#"],
    ["group", "rebalance", "$shared/g/flights/#"],
    ["group", "step-down", "$shared/g/flights/#"],
    ["status"],
    ["serve", "--http-port", "0"],
]


def commands(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """All commands below `node`, each with its options that take a value."""
    for name, one in sorted(node.commands.items()):
        if hasattr(one, "commands"):
            yield from commands(one, (*path, name))
        else:
            yield (
                (*path, name),
                [
                    each.opts[0]
                    for each in one.params
                    if each.param_type_name == "option" and not each.is_flag
                ],
            )


def test_an_option_without_its_value_names_its_command(capfd: pytest.CaptureFixture[str]) -> None:
    tried = 0
    for path, options in commands(cli.tree()):
        for option in options:
            assert cli.run([*path, option]) == 2, (path, option)
            said = (
                f"error: Option '{option}' requires an argument: see 'streamlease {' '.join(path)} --help'\n"
            )
            assert capfd.readouterr().err == said
            tried += 1
    assert tried > 200


def test_a_redis_that_is_not_there(capfd: pytest.CaptureFixture[str]) -> None:
    where = f"127.0.0.1:{free_port()}"
    for words in COMMANDS:
        assert cli.run([*words, "--redis", f"redis://{where}"]) == 1, words
        out, err = capfd.readouterr()
        assert (out, err.count("\n")) == ("", 1), (words, err)
        assert err.startswith(f"error: Redis at {where} does not answer: "), (words, err)
        assert "--redis" in err


def test_a_password_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["status", "--redis", "http://me:secret@x"]) == 2
    assert "secret" not in "".join(capfd.readouterr())


def test_a_redis_that_evicts(url: str, store: redis.Redis, capfd: pytest.CaptureFixture[str]) -> None:
    before = store.dbsize()
    store.config_set("maxmemory-policy", "allkeys-lru")
    try:
        for words in COMMANDS:
            assert cli.run(words) == 1, words
            out, err = capfd.readouterr()
            assert (out, err.count("\n")) == ("", 1), (words, err)
            assert "allkeys-lru" in err
            assert "CONFIG SET maxmemory-policy noeviction" in err
            assert store.dbsize() == before
    finally:
        store.config_set("maxmemory-policy", "noeviction")


def test_the_command_itself_ends_with_these_codes(command: Command) -> None:
    assert command("frobnicate").code == 2
    assert command("space", "show", "nothere").code == 1
    refused = command("space", "create", "s", "--topics", "a/#/b", "--json")
    assert refused.code == 2
    assert refused.document["error"]["type"] == "InvalidTopic"
    assert refused.err == f"error: {refused.document['error']['message']}\n"
