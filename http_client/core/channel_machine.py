"""The client's side of a channel as a machine: commands, polls, and what came. Pure.

::

    subscribe, unsubscribe --> queue --> in flight --> taken by a gateway
                                 ^           |
                                 +-- lost ---+      the same numbers again: what was taken does nothing

    poll --> answer --> by sequence, once --> messages, notices, failures; each with its key

Rules:

* One batch of commands is in flight, first in, first out. The last command for a key wins: what comes under
  the number of an earlier one is left out, however late.
* A poll says what was processed of the gateway that the last answer named. What comes again is left out.
* Another gateway answers, because the former one died or forgot this client: every key is subscribed to there
  from its cursor, which is behind the last message that was handed on, or behind all that the last answers
  had. So nothing is missed, and nothing comes twice unless a gateway died between a message and its cursor.
* A state comes as what differs from an earlier one, whose sequence it names. A key that has another one is
  subscribed to anew, and gets the whole.
* A batch that is refused is cut in halves until the command is found that the gateway does not take: that key
  fails, and the others live.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Document = dict[str, Any]
Policy = Literal["lossy", "critical", "state"]

BATCH = 1000
"""Commands of one batch."""


@dataclass(frozen=True, slots=True)
class ChannelMessage:
    """A message came under a key."""

    key: str
    message: Document
    """As JSON has it: topic, key, payload, stream, offset, ..."""
    cursor: str
    """To subscribe from, behind it."""


@dataclass(frozen=True, slots=True)
class ChannelDropped:
    """Messages of a lossy key were dropped, because they were too many to wait."""

    key: str
    dropped: int


@dataclass(frozen=True, slots=True)
class ChannelFailed:
    """A key has ended by an error; it can be subscribed to again."""

    key: str
    error: Document
    """A problem document; its `oldest`, if it has one, is the cursor from which history is left."""
    cursor: str | None
    """Where it was."""


@dataclass(frozen=True, slots=True)
class ChannelState:
    """A state is another one; those between it and the one before were left out."""

    key: str
    state: Document
    """As who serves the channel tells it: the whole, or what differs from the state that came before."""
    is_first: bool
    """Whether it needs none before it."""


@dataclass(frozen=True, slots=True)
class ChannelBegun:
    """A gateway took the subscription to a key; of no interest but to who waits for that."""

    key: str
    cursor: str | None


ChannelEvent = ChannelMessage | ChannelDropped | ChannelState | ChannelFailed


class _Key:
    __slots__ = ("at", "command", "cursor", "filter", "has", "limit", "moved", "policy", "since")

    def __init__(self, command: int, filter: str, since: str, policy: Policy, limit: int) -> None:
        self.command = command
        self.filter = filter
        self.since = since
        self.policy = policy
        self.limit = limit
        self.cursor: str | None = None
        self.moved = 0
        """The number of the answer that moved the cursor."""
        self.at: str | None = None
        """The gateway that has it; None: none that answered."""
        self.has = 0
        """The sequence of the last state; 0: none came."""


@dataclass(frozen=True, slots=True)
class _Settled:
    """A cursor behind everything of all keys up to a command, at one gateway."""

    cursor: str
    command: int
    answer: int
    """The number of the answer that said so."""
    gateway: str | None


class ChannelMachine:
    """What one client wants, and how far it is."""

    def __init__(self, batch: int = BATCH) -> None:
        self._keys: dict[str, _Key] = {}
        self._batch = self._most = batch
        self._number = 0
        self._queue: deque[tuple[int, str]] = deque()
        """Numbers and keys; what each of them says is found when it goes out, with the cursor of then."""
        self._flying: list[tuple[int, str]] = []
        self.gateway: str | None = None
        """The one that polls go to."""
        self.processed = 0
        self._answers = 0
        self._settled: _Settled | None = None
        self._astray = False
        """Whether a gateway took commands that is not the one of the polls."""

    # ------------------------------------------------------------ what is wanted

    @property
    def keys(self) -> Iterable[str]:
        """Those that are subscribed to, by the last command for each."""
        return self._keys.keys()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is wanted, so that no poll is needed."""
        return not (self._keys or self._queue or self._flying)

    def subscribe(
        self, key: str, filter: str, since: str = "latest", policy: Policy = "critical", limit: int = 1000
    ) -> None:
        """Have all that comes after a point; a former subscription of that key ends."""
        self._number += 1
        self._keys[key] = _Key(self._number, filter, since, policy, limit)
        self._queue.append((self._number, key))

    def follow(self, key: str) -> None:
        """Have the states of a key; a former subscription of that key ends."""
        self.subscribe(key, "", policy="state")

    def unsubscribe(self, key: str) -> None:
        """Have nothing of that key any more."""
        if self._keys.pop(key, None) is not None:
            self._number += 1
            self._queue.append((self._number, key))

    def cursor(self, key: str) -> str | None:
        """From where a subscription to that key would go on; None: nothing is known yet."""
        found = self._keys.get(key)
        return None if found is None else self._cursor(found)

    def _cursor(self, key: _Key) -> str | None:
        last = self._settled
        if last is None or key.at != last.gateway or key.command > last.command or last.answer < key.moved:
            return key.cursor
        return last.cursor

    def _command(self, number: int, name: str) -> Document:
        key = self._keys.get(name)
        if key is None or key.command != number:  # unsubscribed, or followed by another command
            return {"command": number, "unsubscribe": name}
        if key.policy == "state":
            return {"command": number, "subscribe": name, "policy": key.policy}
        return {
            "command": number, "subscribe": name, "filter": key.filter,
            "since": self._cursor(key) or key.since, "policy": key.policy, "limit": key.limit,
        }  # fmt: skip

    # ------------------------------------------------------------ commands

    def next_commands(self) -> Sequence[Document]:
        """The next batch, which is in flight then; empty if there is none, or one is."""
        if self._flying or not self._queue:
            return ()
        count = min(self._batch, len(self._queue))
        self._flying = [self._queue.popleft() for _ in range(count)]
        return [self._command(number, name) for number, name in self._flying]

    def commands_taken(self, answer: Mapping[str, Any]) -> list[ChannelBegun]:
        """The batch in flight was taken."""
        self._flying = []
        self._batch = self._most
        begun = []
        for one in answer["subscriptions"]:
            key = self._keys.get(one["key"])
            if key is not None and key.command == one["command"]:
                key.at = answer["gateway"]
                if key.cursor is None:
                    key.cursor = one["cursor"]
                begun.append(ChannelBegun(one["key"], one["cursor"]))
        self._astray = self.gateway not in (None, answer["gateway"])
        return begun

    def commands_lost(self) -> None:
        """Nobody knows whether the batch in flight was taken: it goes out again, as it was."""
        self._queue.extendleft(reversed(self._flying))
        self._flying = []

    def commands_refused(self, error: Document) -> list[ChannelFailed]:
        """The gateway does nothing of the batch in flight, because of one command in it."""
        if len(self._flying) > 1:
            self._batch = len(self._flying) // 2
            self.commands_lost()
            return []
        ((number, name),) = self._flying
        self._flying = []
        self._batch = self._most
        key = self._keys.get(name)
        if key is None or key.command != number:
            return []
        del self._keys[name]
        return [ChannelFailed(name, error, key.cursor)]

    # ------------------------------------------------------------ polls

    def next_poll(self, wait: float) -> Document:
        """The body of the next poll."""
        return {"gateway": self.gateway, "processed": self.processed, "wait": wait}

    def polled(self, answer: Mapping[str, Any]) -> list[ChannelEvent]:
        """What came with an answer, in order, and for the first time."""
        if answer["gateway"] != self.gateway:
            self.gateway, self.processed, self._astray = answer["gateway"], 0, True
        if self._astray:
            self._come_to(self.gateway)
        self._answers += 1
        events: list[ChannelEvent] = []
        for entry in sorted([*answer["messages"], *answer["failures"]], key=lambda one: one["sequence"]):
            if entry["sequence"] <= self.processed:
                continue
            self.processed = entry["sequence"]
            name = entry["key"]
            key = self._keys.get(name)
            if key is None or entry["command"] != key.command:
                continue
            if entry.get("after", 0) not in (0, key.has):
                self._again(name, key)
            else:
                events.append(self._came(name, key, entry))
        if answer.get("cursor") is not None:
            self._settled = _Settled(answer["cursor"], answer["command"], self._answers, self.gateway)
        return events

    def _came(self, name: str, key: _Key, entry: Mapping[str, Any]) -> ChannelEvent:
        key.at = self.gateway
        if "error" in entry:
            del self._keys[name]
            return ChannelFailed(name, entry["error"], key.cursor)
        if "dropped" in entry:
            return ChannelDropped(name, entry["dropped"])
        if "state" in entry:
            key.has = entry["sequence"]
            return ChannelState(name, entry["state"], entry["after"] == 0)
        key.cursor, key.moved = entry["cursor"], self._answers
        return ChannelMessage(name, entry["message"], entry["cursor"])

    def _come_to(self, gateway: str | None) -> None:
        """Subscribe at a gateway to every key that it does not have, and will not get anyway."""
        self._astray = False
        underway = {number for number, _ in (*self._queue, *self._flying)}
        for name, key in self._keys.items():
            if key.at != gateway:
                key.cursor = self._cursor(key)
                if key.command not in underway:
                    self._again(name, key)

    def _again(self, name: str, key: _Key) -> None:
        """Subscribe to a key that is subscribed to, under a new number."""
        self._number += 1
        key.command, key.at, key.has = self._number, None, 0
        self._queue.append((self._number, name))
