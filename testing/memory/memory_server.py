"""A Redis in memory: one server, its scripts, its channels, who waits, and what a failover loses.

It answers what Streamlease asks, in the words of Redis 7; any other command is refused as unknown.
Everything happens on one thread. With ``replicated=True`` it remembers the writes of the last seconds one by
one, so that :meth:`MemoryServer.fail_over` can hand over to a replica that does not know the newest of them.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from redis.exceptions import ResponseError

from streamlease.testing.memory.commands import COMMANDS, OK, Status
from streamlease.testing.memory.keyspace import Keyspace
from streamlease.testing.memory.lua import Scripts
from streamlease.testing.memory.stream_commands import StreamRead

VERSION = "7.4.0"
KEPT_MS = 10_000
"""A failover can lose what was written in so much time."""

COMPACTED = 5000
"""After so many writes the oldest that no failover can lose any more are joined."""

NO_LINEAGE = "0" * 40

Observer = Callable[[str, Sequence[bytes], Sequence[bytes], Any], None]
"""Is told of each script that ran: its digest, keys, arguments and reply."""

_SCRIPTS: list[Scripts] = []
"""The one Lua of this process; it keeps nothing but compiled scripts."""


class ServerEnd(Protocol):
    """The server's end of a connection."""

    process: int
    """Number of the server's process that it was made to."""

    def answer(self, reply: Any) -> None:
        """Send a reply, or a published message."""

    def lose(self) -> None:
        """It breaks."""


class MemoryServer:
    """One server and its data.

    Args:
        clock: seconds since 1970.
        replicated: there is one replica, to which :meth:`fail_over` hands over.
    """

    def __init__(self, clock: Callable[[], float] = time.time, *, replicated: bool = False) -> None:
        self._clock = clock
        self._at: int | None = None
        self.ahead = 0
        """By how many ms its clock is ahead; a test may set it."""
        self.keys = Keyspace(self.now)
        self._replica: Keyspace | None = Keyspace(self.now) if replicated else None
        self._writes: list[tuple[int, list[bytes]]] = []
        """What the replica may not know: when it was written, and the command."""
        self._safe = 0
        """So many of them the replica has confirmed."""
        self._loaded: dict[str, str] = {}
        if not _SCRIPTS:
            _SCRIPTS.append(Scripts())
        self._lua = _SCRIPTS[0]
        self._number = 0
        self.lineage, self.former_lineage = self._new_lineage(), NO_LINEAGE
        """Its replication id, and that of the server whose data it took over."""
        self._open: dict[ServerEnd, None] = {}
        self._listeners: dict[bytes, dict[ServerEnd, None]] = {}
        self._blocked: dict[ServerEnd, tuple[StreamRead, Callable[[Any], None]]] = {}
        self._touched: set[bytes] = set()
        self.commands = 0
        """How many it has done, those of scripts included."""
        self.observers: list[Observer] = []

    def now(self) -> int:
        """Milliseconds of its clock."""
        return self._at if self._at is not None else int(self._clock() * 1000) + self.ahead

    # ------------------------------------------------------------ ends of its process

    def restart(self) -> None:
        """It forgets its scripts and channels, and begins another lineage; the data stay."""
        self.former_lineage = NO_LINEAGE
        self._begin_anew()

    def fail_over(self, lost_ms: int) -> int:
        """The replica takes over, without what was written in the last `lost_ms`, unless a ``WAIT`` confirmed
        it; how many writes are lost."""
        assert self._replica is not None, "a server without a replica has nobody to hand over to"
        border = self.now() - lost_ms
        kept = self._safe
        while kept < len(self._writes) and self._writes[kept][0] <= border:
            kept += 1
        lost = len(self._writes) - kept
        self._compact(kept)
        self._writes.clear()
        self.keys = self._replica
        self._replica = _copied(self.keys)
        self.former_lineage = self.lineage
        self._begin_anew()
        return lost

    def _begin_anew(self) -> None:
        self.lineage = self._new_lineage()
        self._loaded.clear()
        for peer in self.peers():
            peer.lose()

    def _new_lineage(self) -> str:
        self._number += 1
        return hashlib.sha1(b"%d" % self._number, usedforsecurity=False).hexdigest()

    def _compact(self, count: int) -> None:
        """Let the replica do the first `count` writes that it may not know."""
        assert self._replica is not None
        for at, command in self._writes[:count]:
            self._at = at
            COMMANDS[command[0]].act(self._replica, command[1:])
        self._at = None
        del self._writes[:count]
        self._safe = max(0, self._safe - count)

    # ------------------------------------------------------------ commands

    def execute(self, command: Sequence[bytes]) -> Any:
        """Do one command; its reply, an error as ``ResponseError``, or a `StreamRead` that has to wait."""
        self.commands += 1
        try:
            name, args = command[0].upper(), list(command[1:])
            special = _SPECIAL.get(name)
            if special is not None:
                reply = special(self, args)
            elif name == b"XREAD":
                reading = StreamRead(self.keys, args)
                reply = reading.reply()
                if reply is None and reading.block is not None:
                    return reading
            else:
                reply = self._do(name, args)
        except ResponseError as error:
            return error
        if self._touched:
            self._wake()
        return reply

    def _do(self, name: bytes, args: list[bytes]) -> Any:
        kind = COMMANDS.get(name)
        if kind is None:
            raise ResponseError(f"ERR unknown command '{name.decode('utf-8', 'replace')}'")
        if len(args) < kind.least:
            raise ResponseError(f"ERR wrong number of arguments for '{name.decode().lower()}' command")
        if not kind.writes:
            return kind.act(self.keys, args)
        now = self._at = self.now()
        try:
            reply = kind.act(self.keys, args)
        finally:
            self._at = None
        if name == b"XADD":
            self._touched.add(args[0])
        if self._replica is not None:
            self._writes.append((now, [name, *args]))
            if len(self._writes) > COMPACTED and self._writes[COMPACTED // 2][0] < now - KEPT_MS:
                self._compact(COMPACTED // 2)
        return reply

    def _in_script(self, command: list[bytes]) -> Any:
        self.commands += 1
        name, args = command[0].upper(), command[1:]
        special = _SPECIAL.get(name)
        return special(self, args) if special is not None else self._do(name, args)

    def _evalsha(self, args: list[bytes]) -> Any:
        digest = args[0].decode().lower()
        text = self._loaded.get(digest)
        if text is None:
            raise ResponseError("NOSCRIPT No matching script. Please use EVAL.")
        count = int(args[1])
        keys, values = args[2 : 2 + count], args[2 + count :]
        reply = self._lua.run(digest, text, keys, values, self._in_script)
        for observer in self.observers:
            observer(digest, keys, values, reply)
        return reply

    def _script(self, args: list[bytes]) -> Any:
        kind = args[0].upper()
        if kind == b"LOAD":
            text = args[1].decode()
            digest = hashlib.sha1(args[1], usedforsecurity=False).hexdigest()
            self._loaded[digest] = text
            return digest.encode()
        if kind == b"FLUSH":
            self._loaded.clear()
            return OK
        raise ResponseError(f"ERR unknown subcommand '{args[0].decode()}'")

    def _info(self, args: list[bytes]) -> bytes:
        lines = {
            b"server": f"redis_version:{VERSION}",
            b"memory": "maxmemory:0\r\nmaxmemory_policy:noeviction",
            b"replication": "\r\n".join(
                (
                    "role:master",
                    f"connected_slaves:{int(self._replica is not None)}",
                    f"master_replid:{self.lineage}",
                    f"master_replid2:{self.former_lineage}",
                )
            ),
            b"persistence": "aof_enabled:0",
        }
        wanted = [name.lower() for name in args] or list(lines)
        return "".join(f"# {name.decode()}\r\n{lines.get(name, '')}\r\n" for name in wanted).encode()

    def _wait(self, args: list[bytes]) -> int:
        if self._replica is None:
            return 0
        self._safe = len(self._writes)
        return 1

    def _publish(self, args: list[bytes]) -> int:
        listeners = list(self._listeners.get(args[0], ()))
        for peer in listeners:
            peer.answer([b"message", args[0], args[1]])
        return len(listeners)

    # ------------------------------------------------------------ who listens, and who waits

    def enter(self, peer: ServerEnd) -> None:
        """A connection is made."""
        self._open[peer] = None
        peer.process = self._number

    def peers(self) -> list[ServerEnd]:
        """All connections."""
        return list(self._open)

    def knows(self, peer: ServerEnd) -> bool:
        """Whether what comes by `peer` still comes to the process that it was sent to."""
        return peer.process == self._number

    def listen(self, peer: ServerEnd, channel: bytes) -> None:
        """Hand `peer` what is published there."""
        self._listeners.setdefault(channel, {})[peer] = None

    def listen_no_more(self, peer: ServerEnd, channel: bytes) -> None:
        """Do so no more."""
        self._listeners.get(channel, {}).pop(peer, None)

    def block(self, peer: ServerEnd, reading: StreamRead, done: Callable[[Any], None]) -> None:
        """Call `done` with the reply of `reading` as soon as there is one."""
        self._blocked[peer] = reading, done

    def unblock(self, peer: ServerEnd) -> None:
        """It waits no more."""
        self._blocked.pop(peer, None)

    def leave(self, peer: ServerEnd) -> None:
        """The connection is closed."""
        self._open.pop(peer, None)
        self._blocked.pop(peer, None)
        for channel, listeners in list(self._listeners.items()):
            listeners.pop(peer, None)
            if not listeners:
                del self._listeners[channel]

    def _wake(self) -> None:
        touched, self._touched = self._touched, set()
        for peer, (reading, done) in list(self._blocked.items()):
            if touched.isdisjoint(reading.names) or peer not in self._blocked:
                continue
            reply = reading.reply()
            if reply is not None:
                done(reply)


def _copied(keys: Keyspace) -> Keyspace:
    copy = Keyspace(keys.now)
    copy.take_over(keys)
    return copy


_SPECIAL: dict[bytes, Callable[[MemoryServer, list[bytes]], Any]] = {
    b"PING": lambda server, args: args[0] if args else Status(b"PONG"),
    b"SELECT": lambda server, args: OK,
    b"INFO": MemoryServer._info,
    b"EVALSHA": MemoryServer._evalsha,
    b"SCRIPT": MemoryServer._script,
    b"WAIT": MemoryServer._wait,
    b"PUBLISH": MemoryServer._publish,
    b"COMMAND": lambda server, args: [None for _ in args[1:]],
}
