"""The way between a simulated process and the in-memory server, with everything that can go wrong on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError as RedisConnectionError

from streamlease.streams.redis.scripts import load_script
from streamlease.testing.memory.sockets import Line, Socket
from streamlease.testing.timelines.loops import Event

if TYPE_CHECKING:
    from streamlease.testing.timelines.loops import Process
    from tests.simulation.simulated import SimulatedWorld

FATAL = {
    load_script(f"streamlease.{room}", name).digest.encode()
    for room, name in (
        ("registry", "claim"), ("registry", "take_over"), ("registry", "resign"), ("registry", "witness"),
        ("leader", "journal_append"), ("leader", "journal_snapshot"),
        ("streams.epochs", "enter"), ("streams.epochs", "line"), ("streams.epochs", "lose"),
        ("streams.epochs", "decide"), ("streams.epochs", "move"), ("streams.epochs", "record"),
        ("streams.epochs", "drop"), ("streams.epochs", "snapshot"), ("streams.epochs", "take_over"),
        ("streams.epochs", "forget"),
        ("streams.collections", "take_snapshot"), ("streams.archive", "record"), ("streams.archive", "point"),
    )
}  # fmt: skip
"""Scripts before and behind which a process may crash."""


@dataclass
class Faults:
    """How often something goes wrong; drawn by the seed, all zero once the world has healed."""

    loss: float = 0.0
    """Of a letter."""
    duplicate: float = 0.0
    late: float = 0.0
    """Of a letter: it comes up to three seconds later, behind others."""
    garbage: float = 0.0
    """Of an entry of a mailbox: what nobody can parse stands in it as well."""
    refused: float = 0.0
    """Of a connection: it is not made."""
    broken: float = 0.0
    """Of an exchange: the connection breaks before it arrives."""
    unanswered: float = 0.0
    """Of an exchange: it was done, but the answer is lost."""
    unheard: float = 0.0
    """Of what is published on a channel: it does not reach who listens."""
    overdue: float = 0.0
    """Of an exchange: it is done only after its sender gave it up."""
    crash_before: float = 0.0
    """Of a process, instead of a write to the journal or the leadership record."""
    crash_after: float = 0.0
    """Of a process, right after such a write, before its answer."""
    slow: int = 0
    """Longest delay of a way in ms, instead of 3."""

    def stop(self) -> None:
        """Nothing goes wrong any more."""
        for field in fields(self):
            setattr(self, field.name, 0)


class FaultyLine(Line):
    """The line of one process."""

    def __init__(self, world: SimulatedWorld, process: Process) -> None:
        self.world = world
        self.process = process
        self.cut_off_until = 0.0
        self._back: tuple[Socket, float, list[Any]] | None = None
        """Where the newest replies go to, when they were sent, and they."""
        self._mute: Socket | None = None
        """The connection of which the answer is being lost."""

    @property
    def is_cut_off(self) -> bool:
        """Whether nothing goes through now."""
        return self.cut_off_until > self.world.timeline.now

    def cut_off(self, seconds: float) -> None:
        """Nothing that the process sends arrives, and no answer either, for a while."""
        self.cut_off_until = max(self.cut_off_until, self.world.timeline.now + seconds)
        for socket in self.world.server.peers():
            if isinstance(socket, Socket) and socket.line is self:
                socket.lose()

    def connecting(self) -> float:
        world = self.world
        if world.over or world.down or self.is_cut_off or world.kernel.chance(world.faults.refused):
            raise RedisConnectionError("connection refused")
        return self._delay()

    def _delay(self) -> float:
        faults, kernel = self.world.faults, self.world.kernel
        slow = faults.slow if faults.slow and kernel.chance(0.2) else 3
        return (1 + int(kernel.random.random() * slow)) / 1000

    def sending(self, socket: Socket, commands: list[list[bytes]]) -> None:
        world, kernel, faults = self.world, self.world.kernel, self.world.faults
        now = world.timeline.now
        socket.arrive_at = max(socket.arrive_at, now + self._delay())
        go = socket.arrive_at - now
        if world.over or self.is_cut_off or world.down or kernel.chance(faults.broken):
            world.timeline.after(go, socket.lose)
            return
        fatal = any(part in FATAL for command in commands for part in command[1:2])
        if fatal and kernel.chance(faults.crash_before):
            world.sometimes["crash before a write"] += 1
            world.timeline.after(0, lambda: world.crash(self.process))
            return
        overdue = kernel.chance(faults.overdue)
        if overdue:
            world.timeline.after(go + 0.03, socket.lose)
            go += kernel.random.randint(40, 2500) / 1000
        unanswered = not overdue and kernel.chance(faults.unanswered)

        def arrive() -> None:
            if world.down or (self.is_cut_off and not overdue):
                return
            if overdue:
                world.sometimes["a command arrives after its sender gave it up"] += 1
            if unanswered:
                world.sometimes["an answer is lost after the command was done"] += 1
                self._mute = socket
            socket.arrived([self._letters(command) for command in commands])
            self._mute = None
            if unanswered:
                world.timeline.after(0.03, socket.lose)
            if fatal and kernel.chance(faults.crash_after):
                world.sometimes["crash after a write"] += 1
                world.crash(self.process)

        world.timeline.after(go, arrive)

    def replying(self, socket: Socket, reply: Any) -> None:
        if socket is self._mute:
            return
        if reply.__class__ is list and reply[:1] == [b"message"] and self._is_unheard():
            return
        now = self.world.timeline.now
        if self._back is not None and self._back[:2] == (socket, now):
            self._back[2].append(reply)  # in one packet
            return
        replies = [reply]
        self._back = socket, now, replies
        socket.return_at = max(socket.return_at, now + self._delay())

        def back() -> None:
            if self._back is not None and self._back[2] is replies:
                self._back = None
            for one in replies:
                socket.returned(one)

        self.world.timeline.after(socket.return_at - now, back)

    def _is_unheard(self) -> bool:
        unheard = self.world.kernel.chance(self.world.faults.unheard)
        self.world.sometimes["a push is lost"] += unheard
        return unheard

    def later(self, seconds: float, act: Callable[[], None]) -> Event:
        return self.world.timeline.after(seconds, act)

    # ------------------------------------------------------------ letters

    def _letters(self, command: list[bytes]) -> list[bytes]:
        """A command as it arrives: if it puts letters into a mailbox, some of them go astray."""
        if command[0] != b"XADD" or command[2:3] != [b"NOMKSTREAM"] or b"m" not in command:
            return command
        world, kernel, faults = self.world, self.world.kernel, self.world.faults
        kept: list[Any] = []
        for letter in json.loads(command[-1]):
            if kernel.chance(faults.loss):
                world.sometimes["a letter is lost"] += 1
                continue
            late = kernel.chance(faults.late)
            if not late:
                kept.append(letter)
            if late or kernel.chance(faults.duplicate):
                world.sometimes["a letter comes late" if late else "a letter comes twice"] += 1
                self._later_letter([*command[:-1], json.dumps([letter]).encode()])
        if kernel.chance(faults.garbage):
            world.sometimes["a letter cannot be parsed"] += 1
            kept.insert(0, {"type": "nonsense", "version": 99})
        return [*command[:-1], json.dumps(kept).encode()]

    def _later_letter(self, command: list[bytes]) -> None:
        def arrive() -> None:
            if not self.world.down:
                self.world.server.execute(command)

        self.world.timeline.after(self.world.kernel.random.choice((5, 50, 400, 3000)) / 1000, arrive)
