"""How the submit key comes to an executor without staying where its programs could read it.

The first environment of a process stays readable to others of the same user, in ``/proc``, also after it was
changed. So the command starts itself anew without its secrets, which it hands to itself through a pipe.
"""

from __future__ import annotations

import json
import os
import sys
from typing import NamedTuple

KEY_VARIABLE = "STREAMLEASE_SUBMIT_KEY"
_FILE = "STREAMLEASE_EXECUTOR_SECRETS"


class Secrets(NamedTuple):
    """What an executor knows, and its programs must not."""

    key: str
    redis: str | None
    """URL; None: it was not in the environment."""


def start_without_secrets(words: list[str]) -> None:
    """If this is an executor, start it anew with its secrets in a pipe."""
    if _command(words) != "executor" or KEY_VARIABLE not in os.environ:
        return
    from streamlease.streams.redis.urls import URL_VARIABLE

    aside = {name: os.environ[name] for name in (KEY_VARIABLE, URL_VARIABLE) if name in os.environ}
    reads, writes = os.pipe()
    os.write(writes, json.dumps(aside).encode("utf-8", "surrogateescape"))
    os.close(writes)
    os.set_inheritable(reads, True)
    python = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv[1:])]
    left = {name: value for name, value in os.environ.items() if name not in aside}
    os.execve(sys.executable, [*python, *words], left | {_FILE: str(reads)})


def _command(words: list[str]) -> str | None:
    """The command among the words: what stands before it are options, of which --redis has a value."""
    rest = iter(words)
    for word in rest:
        if word == "--redis":
            next(rest, None)
        elif not word.startswith("-"):
            return word
    return None


def own_secrets() -> Secrets:
    """The secrets of this executor."""
    from streamlease.streams.redis.urls import URL_VARIABLE

    file = os.environ.pop(_FILE, "")
    if not file.isdigit():
        return Secrets(os.environ.get(KEY_VARIABLE, ""), None)
    with os.fdopen(int(file), "rb") as pipe:
        aside = json.loads(pipe.read())
    return Secrets(aside.get(KEY_VARIABLE, ""), aside.get(URL_VARIABLE))
