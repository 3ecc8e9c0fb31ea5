"""The mailbox of a client: what waits under its keys, what was sent, and what it has acknowledged. Pure.

::

    messages --offer--> waiting --take--> sent --acknowledge--> gone
                           |               |
                           |               +-- sent again by the next poll until it is acknowledged
                           +-- lossy: the oldest of the key goes, and a notice says how many
                           +-- critical: nothing more is taken; the key falls back to its cursor

Messages of all keys wait in one line, as they came. What goes out gets the next sequence, so the sequences of
a client have no gaps, and what was dropped while it waited never had one. A key lives like this, and never
twice: a subscription that comes back is a new one, with the number of a later command.

Of a key with the policy ``state`` nothing waits: behind the messages goes what differs from the state that
the client has acknowledged (``state_lines``). What was not acknowledged of it is made anew, under a new
sequence, in place of the former one.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from pydantic_core import to_json

from streamlease.channels.core.channel_limits import ChannelLimits
from streamlease.channels.core.state_lines import StateLine, StateSource
from streamlease.protocol.errors import InvalidInput

ENTRY_BYTES = 400
"""What an entry takes beside its message."""

MailboxPolicy = Literal["lossy", "critical", "state"]


class MailboxKey:
    """A subscription of a client.

    Args:
        command: the number of the command that began it.
        limit: messages that may wait.
    """

    __slots__ = (
        "_dropped", "_first", "_last", "command", "limit", "name", "name_json", "policy", "waiting",
    )  # fmt: skip

    def __init__(self, name: str, command: int, policy: MailboxPolicy, limit: int) -> None:
        self.name = name
        self.name_json = to_json(name)
        self.command = command
        self.policy = policy
        self.limit = limit
        self.waiting = 0
        self._dropped = 0
        self._first: _Waiting | None = None
        self._last: _Waiting | None = None

    def leave(self) -> None:
        """It was unsubscribed, replaced, or has failed."""

    # what waits, oldest first; a chain, so that a key without messages costs nothing for it

    def append(self, entry: _Waiting) -> None:
        """Another message waits."""
        if self._last is None:
            self._first = entry
        else:
            self._last.behind = entry
        self._last = entry
        self.waiting += 1

    def pop(self) -> _Waiting:
        """The oldest one waits no longer."""
        entry = self._first
        assert entry is not None
        self._first, entry.behind = entry.behind, None
        if self._first is None:
            self._last = None
        self.waiting -= 1
        return entry

    def count_dropped(self, messages: int) -> None:
        """The client will be told of so many more."""
        self._dropped += messages

    def take_dropped(self) -> int:
        """How many went since this was asked."""
        dropped, self._dropped = self._dropped, 0
        return dropped


K = TypeVar("K", bound=MailboxKey)


class _Waiting:
    """A message that waits; or, without one, a notice; or the failure of a key, as the last of it."""

    __slots__ = ("behind", "cursor", "is_failure", "key", "message", "number")

    def __init__(self, number: int, key: K, message: bytes, cursor: str, is_failure: bool = False) -> None:
        self.number = number
        self.key = key
        self.message = message
        self.cursor = cursor
        self.is_failure = is_failure
        self.behind: _Waiting | None = None
        """The next one of the same key."""

    @property
    def size(self) -> int:
        return len(self.message) + len(self.cursor) + ENTRY_BYTES


class SentEntry(NamedTuple):
    """What goes out under one sequence: a message, a notice of dropped ones, a state, a failure of a key."""

    sequence: int
    key: MailboxKey
    body: bytes
    """As JSON, without what all of them have."""
    is_failure: bool = False
    state: Any | None = None
    """The one that the client has when it has this."""

    @property
    def json(self) -> bytes:
        """The whole as the client gets it."""
        return b'{"sequence":%d,"key":%b,"command":%d,%b}' % (
            self.sequence, self.key.name_json, self.key.command, self.body,
        )  # fmt: skip

    @property
    def size(self) -> int:
        """What it takes, about."""
        return len(self.body) + ENTRY_BYTES


class ClientMailbox(Generic[K]):
    """What one client is to get."""

    def __init__(self, limits: ChannelLimits) -> None:
        self._limits = limits
        self.keys: dict[str, K] = {}
        self.command = 0
        """The number of the last command that was taken."""
        self.sequence = 0
        """The last one that went out."""
        self.bytes = 0
        self.dropped = 0
        """Of all keys, ever."""
        self._number = 0
        self._waiting: OrderedDict[int, _Waiting] = OrderedDict()
        self._sent: deque[SentEntry] = deque()
        self._states: dict[MailboxKey, StateLine] = {}
        """Those that were served last stand last."""

    @property
    def has_news(self) -> bool:
        """Whether an answer would hold something."""
        return bool(self._sent or self._waiting) or any(one.has_news for one in self._states.values())

    @property
    def is_drained(self) -> bool:
        """Whether all there is has been sent."""
        return not self._waiting

    @property
    def waiting(self) -> int:
        """How many messages wait."""
        return len(self._waiting)

    # ------------------------------------------------------------ commands

    def subscribe(self, key: K, states: StateSource | None = None) -> K | None:
        """The key is subscribed to, in place of the former subscription of that name, which is returned.

        Args:
            states: those of a key with the policy ``state``.
        """
        former = self.unsubscribe(key.name)
        self.keys[key.name] = key
        if states is not None:
            self._states[key] = StateLine(states)
        return former

    def unsubscribe(self, name: str) -> K | None:
        """Nothing of that key is sent any more; None if it was not there."""
        key = self.keys.pop(name, None)
        if key is not None:
            self._leave(key)
            while key.waiting:
                self._forget(key.pop())
            if any(one.key is key for one in self._sent):
                self.bytes -= sum(one.size for one in self._sent if one.key is key)
                self._sent = deque(one for one in self._sent if one.key is not key)
        return key

    def fail(self, key: K, error: object) -> None:
        """The key ends by an error, which the client is told behind the messages that wait."""
        if self.keys.get(key.name) is key:
            del self.keys[key.name]
            self._leave(key)
            self._append(key, to_json(error), "", is_failure=True)

    def revoke(self, key: K, error: object) -> None:
        """The key ends by an error at once: the client gets nothing of it any more, not even what waits."""
        if self.unsubscribe(key.name) is key:
            self._append(key, to_json(error), "", is_failure=True)

    def _leave(self, key: K) -> None:
        key.leave()
        self._states.pop(key, None)

    # ------------------------------------------------------------ messages come

    def has_half_room(self) -> bool:
        """Whether the mailbox is at most half full."""
        return self.bytes <= self._limits.mailbox_bytes // 2

    def has_room(self, key: K) -> bool:
        """Whether another message may wait under `key` without one being dropped."""
        return key.waiting < key.limit and self.bytes < self._limits.mailbox_bytes

    def offer(self, key: K, message: bytes, cursor: str) -> bool:
        """A message of a key that is live; whether it was taken, otherwise the key has to fall back.

        Args:
            message: as JSON.
            cursor: behind it.
        """
        if not self.has_room(key):
            if key.policy == "critical":
                return False
            if not self._make_room(key, len(message) + len(cursor) + ENTRY_BYTES):
                self._count_dropped(key)
                message = b""  # only the notice waits
        self.put(key, message, cursor)
        return True

    def put(self, key: K, message: bytes, cursor: str) -> None:
        """A message waits; see `has_room`."""
        self._append(key, message, cursor)

    def _make_room(self, key: K, size: int) -> bool:
        """Drop the oldest of the key; whether there is room then, or others fill the mailbox."""
        most = self._limits.mailbox_bytes
        while key.waiting and (key.waiting >= key.limit or self.bytes + size > most):
            entry = key.pop()
            self._forget(entry)
            if entry.message:
                self._count_dropped(key)
        return self.bytes + size <= most or not self.bytes

    def _count_dropped(self, key: K) -> None:
        key.count_dropped(1)
        self.dropped += 1

    def _append(self, key: K, message: bytes, cursor: str, *, is_failure: bool = False) -> None:
        self._number += 1
        entry = _Waiting(self._number, key, message, cursor, is_failure)
        self._waiting[self._number] = entry
        key.append(entry)
        self.bytes += entry.size

    def _forget(self, entry: _Waiting) -> None:
        del self._waiting[entry.number]
        self.bytes -= entry.size

    # ------------------------------------------------------------ messages go

    def acknowledge(self, processed: int) -> None:
        """The client is done with all up to that sequence.

        Raises:
            InvalidInput: so much was never sent.
        """
        if processed > self.sequence:
            raise InvalidInput(
                f"processed is {processed}, and the last sequence that this gateway sent is {self.sequence}: "
                f"give the highest sequence of the answers of this gateway"
            )
        while self._sent and self._sent[0].sequence <= processed:
            sent = self._sent.popleft()
            self.bytes -= sent.size
            if sent.state is not None and (line := self._states.get(sent.key)) is not None:
                line.acknowledge(sent.state, sent.sequence)

    def take(self) -> list[SentEntry]:
        """What an answer holds: messages that were not acknowledged, as they were, then those that wait, then
        what is new of states, as far as there is room.
        """
        if self._states:
            self._withdraw_states()
        size = sum(one.size for one in self._sent)
        most, most_bytes = self._limits.answer_messages, self._limits.answer_bytes
        while self._waiting and len(self._sent) < most and size < most_bytes:
            size += self._send_first()
        for key, line in [*self._states.items()]:
            if len(self._sent) >= most or size >= most_bytes:
                break
            if (told := line.tell()) is not None:
                size += self._send(key, told.body, state=told.state)
                self._states[key] = self._states.pop(key)
        return [*self._sent]

    def _withdraw_states(self) -> None:
        """Those that were not acknowledged are sent as they are now."""
        self.bytes -= sum(one.size for one in self._sent if one.state is not None)
        self._sent = deque(one for one in self._sent if one.state is None)

    def _send_first(self) -> int:
        """Send what waits longest; how much that is."""
        entry = next(iter(self._waiting.values()))
        key, size = entry.key, 0
        popped = key.pop()
        assert popped is entry
        self._forget(entry)
        if dropped := key.take_dropped():
            size += self._send(key, b'"dropped":%d' % dropped)
        if entry.is_failure:
            size += self._send(key, b'"error":%b' % entry.message, is_failure=True)
        elif entry.message:
            size += self._send(key, b'"message":%b,"cursor":"%b"' % (entry.message, entry.cursor.encode()))
        return size

    def _send(
        self, key: MailboxKey, body: bytes, *, is_failure: bool = False, state: Any | None = None
    ) -> int:
        self.sequence += 1
        sent = SentEntry(self.sequence, key, body, is_failure, state)
        self._sent.append(sent)
        self.bytes += sent.size
        return sent.size
