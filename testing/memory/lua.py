"""Runs Lua scripts as Redis does: the same Lua 5.1, the same conversions of what goes in and comes out.

The scripts are the product's own, so nothing of them is written twice. Needs the package ``lupa``
(``pip install 'streamlease[testing]'``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import ResponseError

from streamlease.protocol.errors import Unsupported
from streamlease.testing.memory.commands import Status

Call = Callable[[list[bytes]], Any]
"""Does one command for a script; raises ``ResponseError``."""


class Scripts:
    """One Lua, and the scripts that it has compiled."""

    def __init__(self) -> None:
        try:
            from lupa.lua51 import LuaError, LuaRuntime, lua_type  # type: ignore[import-untyped]
        except ImportError:
            raise Unsupported(
                "the in-memory server runs Lua scripts and needs 'lupa': "
                "run pip install 'streamlease[testing]'"
            ) from None
        self._lua = LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self._lua_type = lua_type
        self._error: type[Exception] = LuaError
        self._compiled: dict[str, Any] = {}
        self._call: Call | None = None
        names: Any = self._lua.globals()
        names[b"redis"] = self._lua.table_from(
            {
                b"call": self._run,
                b"pcall": self._run_protected,
                b"error_reply": lambda text: self._lua.table_from({b"err": text}),
                b"status_reply": lambda text: self._lua.table_from({b"ok": text}),
                b"acl_check_cmd": lambda *args: True,
                b"log": lambda *args: None,
            }
        )
        names[b"cjson"] = self._lua.table_from({b"decode": self._decoded})

    def run(self, digest: str, text: str, keys: Sequence[bytes], args: Sequence[bytes], call: Call) -> Any:
        """Run a script; its reply, as a server gives it.

        Raises:
            ResponseError: the script ended with an error.
        """
        script = self._compiled.get(digest)
        if script is None:
            source = f"return function(KEYS, ARGV) {text}\nend"
            script = self._compiled[digest] = self._lua.execute(source.encode())
        before, self._call = self._call, call
        try:
            reply = script(self._lua.table_from(keys), self._lua.table_from(args))
        except self._error as error:
            raise ResponseError(f"ERR {error}".partition("\n")[0]) from None
        finally:
            self._call = before
        return self._replied(reply[0] if isinstance(reply, tuple) else reply)

    def _run(self, *command: Any) -> Any:
        assert self._call is not None
        return self._given(self._call([_argument(part) for part in command]))

    def _run_protected(self, *command: Any) -> Any:
        try:
            return self._run(*command)
        except ResponseError as error:
            return self._lua.table_from({b"err": str(error).encode()})

    def _given(self, value: Any) -> Any:
        """A reply of a command, as the script sees it."""
        if value is None:
            return False
        if isinstance(value, list):
            return self._lua.table_from([self._given(part) for part in value])
        if isinstance(value, Status):
            return self._lua.table_from({b"ok": value})
        return value

    def _replied(self, value: Any) -> Any:
        """What a script returns, as a client sees it."""
        if value is None or value is False:
            return None
        if value is True:
            return 1
        if isinstance(value, float):
            return int(value)
        if self._lua_type(value) != "table":
            return value
        for name in (b"err", b"ok"):
            if (said := value[name]) is not None:
                if name == b"err":
                    raise ResponseError(said.decode("utf-8", "replace"))
                return Status(said)
        found: list[Any] = []
        while (part := value[len(found) + 1]) is not None:
            found.append(self._replied(part))
        return found

    def _decoded(self, text: bytes) -> Any:
        return self._table(json.loads(text))

    def _table(self, value: Any) -> Any:
        if isinstance(value, dict):
            return self._lua.table_from({name.encode(): self._table(part) for name, part in value.items()})
        if isinstance(value, list):
            return self._lua.table_from([self._table(part) for part in value])
        return value.encode() if isinstance(value, str) else value


def _argument(value: Any) -> bytes:
    """An argument that a script hands to a command; numbers as Lua in Redis writes them."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ResponseError("ERR Lua redis lib command arguments must be strings or integers")
    return (b"%d" % value) if value == int(value) and abs(value) < 1e17 else b"%.17g" % value
