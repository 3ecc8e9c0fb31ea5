"""The way between a process and the store, and the letters on it, with everything that can go wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from streamlease.protocol.errors import Indefinite, StoreUnavailable
from streamlease.protocol.messages import Message, decode, encode
from tests.simulation.kernel import Kernel, Process, Task
from tests.simulation.store import Store

T = TypeVar("T")


@dataclass
class Faults:
    """How often something goes wrong; drawn by the seed, all zero once the world has healed."""

    loss: float = 0.0
    """Of a letter."""
    duplicate: float = 0.0
    late: float = 0.0
    """Of a letter: it comes up to three seconds later, behind others."""
    refused: float = 0.0
    """Of a command: it never reaches the store."""
    unanswered: float = 0.0
    """Of a command: it was done, but the answer is lost."""
    overdue: float = 0.0
    """Of a command: it is done only after its sender gave it up."""
    crash_before: float = 0.0
    """Of a process, instead of a write to the journal or the leadership record."""
    crash_after: float = 0.0
    """Of a process, right after such a write, before its answer."""
    slow: int = 0
    """Longest delay of a command in ms, instead of 3."""

    def stop(self) -> None:
        """Nothing goes wrong any more."""
        for field in fields(self):
            setattr(self, field.name, 0)


class Net:
    """Carries commands to the store and letters through it."""

    def __init__(self, kernel: Kernel, store: Store, faults: Faults, sometimes: Counter[str]) -> None:
        self.kernel = kernel
        self.store = store
        self.faults = faults
        self.sometimes = sometimes
        self.on_crash: Callable[[Process], None] = lambda process: process.end()

    def call(self, process: Process, act: Callable[[Store], Any], *, fatal: bool = False) -> Any:
        """To be yielded by a routine: `act` on the store, and its result.

        Args:
            fatal: a write at which the process may crash.

        Raises (in the routine):
            StoreUnavailable: nothing was done.
            Indefinite: done or not.
        """

        def begin(task: Task) -> None:
            self._begin(process, task, act, fatal)

        return begin

    def _delay(self) -> int:
        slow = self.faults.slow
        return self.kernel.random.randint(1, slow if slow and self.kernel.chance(0.3) else 3)

    def _begin(self, process: Process, task: Task, act: Callable[[Store], Any], fatal: bool) -> None:
        kernel, store, faults = self.kernel, self.store, self.faults
        go = self._delay()
        if store.down or process.is_cut_off or kernel.chance(faults.refused):
            self._answer(process, task, go + 20, error=StoreUnavailable("the store does not answer"))
            return
        if fatal and kernel.chance(faults.crash_before):
            self.sometimes["crash before a write"] += 1
            self.on_crash(process)
            return
        incarnation = store.incarnation
        overdue = kernel.chance(faults.overdue)
        if overdue:
            give_up = Indefinite("no answer came")
            self._answer(process, task, go + 30, error=give_up)
            go += kernel.random.randint(40, 2500)

        def arrive() -> None:
            if store.down or store.incarnation != incarnation or (process.is_cut_off and not overdue):
                if not overdue:
                    self._answer(process, task, 20, error=Indefinite("the connection broke"))
                return
            result = act(store)
            if overdue:
                self.sometimes["a command arrives after its sender gave it up"] += 1
                return
            if fatal and kernel.chance(faults.crash_after):
                self.sometimes["crash after a write"] += 1
                self.on_crash(process)
            elif kernel.chance(faults.unanswered):
                self.sometimes["an answer is lost after the command was done"] += 1
                self._answer(process, task, 30, error=Indefinite("no answer came"))
            else:
                self._answer(process, task, self._delay(), result, incarnation=incarnation)

        kernel.after(go, arrive)

    def _answer(
        self,
        process: Process,
        task: Task,
        delay: int,
        result: Any = None,
        error: Exception | None = None,
        incarnation: int | None = None,
    ) -> None:
        def back() -> None:
            if error is None and (
                process.is_cut_off or (incarnation is not None and incarnation != self.store.incarnation)
            ):
                task.resume(error=Indefinite("the connection broke"))
            else:
                task.resume(result, error)

        self.kernel.at(self.kernel.now + delay, back, process)

    def post(self, store: Store, sender: str, letters: list[tuple[str, Message]]) -> None:
        """At the store: put letters into mailboxes, in their order, except those that go astray."""
        kernel, faults = self.kernel, self.faults
        by_receiver: dict[str, list[Message]] = {}
        for receiver, message in letters:
            if kernel.chance(faults.loss):
                self.sometimes["a letter is lost"] += 1
                continue
            if kernel.chance(faults.late):
                self._later(sender, receiver, message)
                continue
            by_receiver.setdefault(receiver, []).append(message)
            if kernel.chance(faults.duplicate):
                self.sometimes["a letter comes twice"] += 1
                self._later(sender, receiver, message)
        for receiver, messages in by_receiver.items():
            if not store.send(sender, receiver, tuple(messages)):
                self.sometimes["a letter to a mailbox that is gone"] += 1

    def _later(self, sender: str, receiver: str, message: Message) -> None:
        def arrive() -> None:
            if not self.store.down:
                self.store.send(sender, receiver, (message,))

        self.kernel.after(self.kernel.random.choice((5, 50, 400, 3000)), arrive)


class Postbox:
    """The receiving end of one process: it reads its mailbox as soon as there is something."""

    def __init__(self, net: Net, process: Process, owner: str, take: Callable[[str, Message], None]) -> None:
        self.net = net
        self.process = process
        self.owner = owner
        self._take = take
        self._last = (0, 0)
        self._reading = False

    def look(self) -> None:
        """Read soon, unless a reading is under way."""
        if not self._reading and self.process.alive:
            self._reading = True
            self.process.after(1, self._read)

    def _read(self) -> None:
        if self.net.store.down or self.process.is_cut_off:
            self.process.after(200, self._read)
            return
        self._reading = False
        for id, sender, messages in self.net.store.receive(self.owner, self._last):
            self._last = id
            through = _encoded(messages) if self.net.kernel.events % 16 == 0 else messages
            for message in through:
                self._take(sender, message)
                if not self.process.alive:
                    return


def _encoded(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages as they are after their way through a mailbox."""
    decoded, bad = decode(encode(messages))
    assert bad == 0 and tuple(decoded) == messages
    return tuple(decoded)
