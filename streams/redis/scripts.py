"""Lua scripts: one file per atomic act, beside the Python that calls it.

A file ``lua/NAME.lua`` opens with a comment that lists KEYS, ARGV and every reply. A script checks
everything first and writes afterwards, because Lua in Redis does not roll back. Any room can have scripts:
``load_script("streamlease.registry", "claim")``. What two scripts do alike stands in a file of its own, of
functions only; the line ``-- include: ROOM/NAME`` is replaced by that file, and the digest is of the whole.
As each such line stands before the first statement, ``cat NAME.lua SCRIPT.lua`` is the same program.

A script runs by its digest; the first call of a client loads it in the same write. A server that was
restarted or flushed its scripts answers NOSCRIPT, which means that it did not run: it is loaded and called
again.

A Redis at its `maxmemory` refuses a script at its first write if that could need memory, and lets one that
has written already go on (so do 6.2, 7, 8 and Valkey). A script that must run all the same, because memory is
freed by it or by what it makes possible, and that writes little, or moves what takes memory already, begins
with a write that needs no memory and changes nothing: ``HDEL`` of the field with an empty name. Appends never
do so; `tests/house/test_lua_files.py` knows which scripts do not
(`docs/decisions/0145-what-runs-without-memory.md`, 0494).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from redis.exceptions import NoScriptError, ResponseError

from streamlease.protocol.errors import Indefinite, StoreUnavailable, StreamleaseError
from streamlease.streams.redis.cluster_slots import Answer, raise_failed
from streamlease.streams.redis.connection import (
    Argument,
    Command,
    Redis,
    exchange_behind,
    identity,
    refusal,
)

_INCLUDE = re.compile(r"^-- include: ([\w.]+)/(\w+)\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """One Lua script: its name for messages, its text, and the digest by which Redis knows it."""

    name: str
    text: str
    digest: str

    def call(self, keys: Sequence[str], args: Sequence[Argument] = ()) -> Call:
        """This script with its keys and arguments, to be run with others by :func:`run_many`."""
        return Call(self, (*keys,), (*args,))

    async def run(self, client: Redis, keys: Sequence[str], args: Sequence[Argument] = ()) -> Any:
        """Run it.

        Raises:
            StoreUnavailable: no connection; it did not run.
            Indefinite: the connection failed after sending; it ran, or it did not.
            StoreRefused: Redis answered with an error.
        """
        return _only(await run_many(client, [self.call(keys, args)]))


class Call(NamedTuple):
    """A script with its keys and arguments."""

    script: Script
    keys: tuple[str, ...]
    args: tuple[Argument, ...]

    @property
    def command(self) -> Command:
        """The EVALSHA command."""
        return ("EVALSHA", self.script.digest, len(self.keys), *self.keys, *self.args)


@cache
def load_script(package: str, name: str) -> Script:
    """The script ``lua/NAME.lua`` of `package`, with what it includes.

    Raises:
        FileNotFoundError: the package, or one that it includes from, has no such file.
    """
    text = _INCLUDE.sub(lambda found: _text(found[1], found[2]), _text(package, name))
    digest = hashlib.sha1(text.encode("utf-8"), usedforsecurity=False).hexdigest()
    return Script(f"{package}/{name}", text, digest)


def _text(package: str, name: str) -> str:
    return files(package).joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


_LOADED: WeakKeyDictionary[object, set[str]] = WeakKeyDictionary()
"""Which scripts were loaded through which connection pool. Only saves a round trip; NOSCRIPT is the truth."""


async def run_many(client: Redis, calls: Sequence[Call]) -> list[Any]:
    """Run `calls` in one write; replies in order, error replies as ``ResponseError`` in their places.

    The calls must not depend on each other: one that the server did not know runs after the others.

    Raises:
        StoreUnavailable: no connection; nothing ran.
        Indefinite: the connection failed after sending; each of them ran, or did not.
    """
    return _replies(await run_waiting(client, calls, ()))


async def run_each(client: Redis, calls: Sequence[Call]) -> list[Any]:
    """:func:`run_many`, where each call stands for itself.

    Returns:
        for each call its reply, an error reply as ``ResponseError``, or what came of it if its server of a
        cluster failed: ``StoreUnavailable`` or ``Indefinite``.

    Raises:
        StoreUnavailable, Indefinite: the only server failed, or all of a cluster did.
    """
    return [answer.reply for answer in await run_waiting(client, calls, ())]


async def run_waiting(client: Redis, calls: Sequence[Call], waits: Sequence[Command]) -> list[Answer]:
    """:func:`run_many`, and behind the calls, on the same connection, the commands `waits`.

    Returns:
        for each call its reply, and those to the `waits` behind it. In a cluster a reply may also be
        ``StoreUnavailable`` or ``Indefinite``: other calls ran, this one did not, or may have run.
    """
    commands = [call.command for call in calls]
    answers = await exchange_behind(client, _loads(calls, _known(client)), commands, waits)
    missing = _unknown(answers)
    if missing:
        again = [calls[place] for place in missing]
        commands = [call.command for call in again]
        try:
            repeated = await exchange_behind(client, _loads(again), commands, waits)
        except StoreUnavailable as error:
            raise _after_some_ran(error, calls, missing) from None
        _put_back(answers, missing, repeated)
    _known(client).update(call.script.digest for call in calls)
    return answers


def _replies(answers: list[Answer]) -> list[Any]:
    failed = [answer.reply for answer in answers if isinstance(answer.reply, StreamleaseError)]
    raise_failed(failed, len(answers))
    return [answer.reply for answer in answers]


def _known(client: Redis) -> set[str]:
    return _LOADED.setdefault(identity(client), set())


def _loads(calls: Sequence[Call], known: Collection[str] = ()) -> list[Command]:
    scripts = dict.fromkeys(call.script for call in calls)
    return [("SCRIPT", "LOAD", script.text) for script in scripts if script.digest not in known]


def _unknown(answers: list[Answer]) -> list[int]:
    return [place for place, answer in enumerate(answers) if isinstance(answer.reply, NoScriptError)]


def _after_some_ran(
    error: StoreUnavailable, calls: Sequence[Call], missing: list[int]
) -> StoreUnavailable | Indefinite:
    return error if len(missing) == len(calls) else Indefinite(f"some calls ran, the others did not: {error}")


def _put_back(answers: list[Answer], missing: list[int], again: list[Answer]) -> None:
    for place, answer in zip(missing, again, strict=True):
        answers[place] = answer


def _only(replies: list[Any]) -> Any:
    (reply,) = replies
    if isinstance(reply, ResponseError):
        raise refusal(reply) from None
    return reply
