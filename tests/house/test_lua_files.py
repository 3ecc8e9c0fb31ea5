"""Lua files say what they take and answer, and share what they do alike."""

from __future__ import annotations

import re
from itertools import takewhile
from pathlib import Path

import pytest

from tests.house.plan import LUA, ROOT

WRITES = re.compile(
    r"redis\.p?call\('(HSET|HSETNX|HINCRBY|SET|INCR|ZADD|SADD|XADD|"  # these may need memory
    r"DEL|UNLINK|HDEL|SREM|ZREM|XDEL|XTRIM|PEXPIRE|EXPIRE|PERSIST)'"
)
NO_MEMORY = {"DEL", "UNLINK", "HDEL", "SREM", "ZREM", "XDEL", "XTRIM", "PEXPIRE", "EXPIRE", "PERSIST"}
REFUSED = {
    "streams/log/lua/append.lua": "messages",
    "streams/log/lua/append_many.lua": "messages",
    "streams/epochs/lua/stage_many.lua": "messages",
    "streams/epochs/lua/stage_batch.lua": "messages, beside those that tasks have staged",
    "streams/publish/staged/lua/stage.lua": "messages",
    "streams/publish/staged/lua/register.lua": "comes before messages",
    "streams/imports/lua/refuse.lua": "keeps an entry that may be large",
    "streams/imports/lua/source.lua": "comes before messages",
    "streams/imports/lua/source_begin.lua": "comes before messages",
    "registry/webhooks/lua/put_webhook.lua": "webhooks are as many as clients make",
}
"""Scripts that a Redis without memory refuses, and what they write that has no bound."""


@pytest.mark.parametrize("script", LUA, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_lua_file_opens_with_its_keys_arguments_and_replies(script: Path) -> None:
    lines = script.read_text().splitlines()
    header = list(takewhile(lambda line: line.startswith("--"), lines))
    for word in ("KEYS", "ARGV", "Repl"):
        assert any(word in line for line in header), f"the header of {script.name} says nothing about {word}"


def test_no_two_lua_files_hold_six_equal_lines() -> None:
    """What two scripts do alike belongs into a file that both include."""
    runs: dict[tuple[str, ...], set[str]] = {}
    for script in LUA:
        lines = [line.split("--")[0].strip() for line in script.read_text().splitlines()]
        lines = [line for line in lines if line]
        for first in range(len(lines) - 5):
            runs.setdefault(tuple(lines[first : first + 6]), set()).add(str(script.relative_to(ROOT)))
    assert {run: found for run, found in runs.items() if len(found) > 1} == {}


def test_what_a_lua_file_includes_stands_before_its_first_statement() -> None:
    including = 0
    for script in LUA:
        head = list(
            takewhile(lambda line: line.startswith("--") or not line, script.read_text().splitlines())
        )
        named = script.read_text().count("-- include: ")
        including += named
        assert sum(line.startswith("-- include: ") for line in head) == named, script
    assert including >= 4


def needs_memory(script: Path) -> bool:
    """Whether the first write of the script may need memory: then Redis refuses it when there is none."""
    included = re.findall(r"^-- include: ([\w.]+)/(\w+)$", script.read_text(), re.MULTILINE)
    parts = [
        ROOT / room.removeprefix("streamlease.").replace(".", "/") / f"lua/{name}.lua"
        for room, name in included
    ]
    text = "".join(part.read_text() for part in (script, *parts))
    if "-- needs no memory, see streams/redis/scripts.py" in text:
        return False
    first = WRITES.search(script.read_text()) or WRITES.search(text)
    return first is not None and first[1] not in NO_MEMORY


def test_only_what_has_no_bound_is_refused_without_memory() -> None:
    """What is bounded, or frees memory, or only moves what is there, is written all the same."""
    texts = [script.read_text() for script in LUA]
    included = {
        name for text in texts for name in re.findall(r"^-- include: [\w.]+/(\w+)$", text, re.MULTILINE)
    }
    refused = {str(one.relative_to(ROOT)) for one in LUA if one.stem not in included and needs_memory(one)}
    assert refused == {*REFUSED}
