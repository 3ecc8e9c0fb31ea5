"""Keys of states: the newest one replaces what was not fetched; differences are to what was acknowledged."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streamlease.channels.core.channel_limits import ChannelLimits
from streamlease.channels.core.client_mailbox import ClientMailbox, MailboxKey

State = dict[str, int]


class Rows:
    """A state of rows by key, and how differences of it are told."""

    def __init__(self, state: State | None = None) -> None:
        self.state = state

    def now(self) -> State | None:
        return self.state

    def difference(self, before: State | None, now: State) -> bytes | None:
        if before is None:
            return json.dumps({"whole": True, "rows": now}).encode()
        rows = {key: value for key, value in now.items() if before.get(key) != value}
        gone = [key for key in before if key not in now]
        return json.dumps({"whole": False, "rows": rows, "gone": gone}).encode() if rows or gone else None


class Reader:
    """A client that takes differences only right behind what it has."""

    def __init__(self) -> None:
        self.processed = 0
        self.has: State | None = None
        self.at = 0

    def took(self, entry: dict[str, Any]) -> None:
        assert entry["sequence"] > self.processed
        self.processed = entry["sequence"]
        assert entry["after"] == (0 if self.has is None else self.at), "it is not right behind"
        told = entry["state"]
        assert told["whole"] is (self.has is None)
        self.has = {**(self.has or {}), **told["rows"]}
        for key in told.get("gone", ()):
            del self.has[key]
        self.at = entry["sequence"]


def watching(rows: Rows, **limits: Any) -> ClientMailbox[MailboxKey]:
    mailbox: ClientMailbox[MailboxKey] = ClientMailbox(ChannelLimits(**limits))
    mailbox.subscribe(MailboxKey("k", 1, "state", 1), rows)
    return mailbox


def entries(mailbox: ClientMailbox[MailboxKey]) -> list[dict[str, Any]]:
    return [json.loads(one.json) for one in mailbox.take()]


def test_the_first_is_whole_and_the_next_a_difference() -> None:
    rows = Rows({"a": 1, "b": 1})
    mailbox = watching(rows)
    assert entries(mailbox) == [
        {"sequence": 1, "key": "k", "command": 1, "after": 0, "state": {"whole": True, "rows": rows.state}}
    ]
    mailbox.acknowledge(1)
    assert not mailbox.has_news
    rows.state = {"a": 2}
    (one,) = entries(mailbox)
    assert (one["after"], one["state"]) == (1, {"whole": False, "rows": {"a": 2}, "gone": ["b"]})


def test_nothing_is_said_of_what_is_not_known_or_did_not_change() -> None:
    rows = Rows()
    mailbox = watching(rows)
    assert not mailbox.has_news
    rows.state = {"a": 1}
    mailbox.take()
    mailbox.acknowledge(1)
    rows.state = {"a": 1}  # another one, that is equal
    assert entries(mailbox) == []
    assert (mailbox.sequence, mailbox.has_news) == (1, False)


def test_what_was_not_fetched_is_replaced_and_nothing_waits_for_a_slow_client() -> None:
    rows = Rows({"a": 0})
    mailbox = watching(rows)
    entries(mailbox)
    mailbox.acknowledge(1)
    sizes = set()
    for number in range(1, 1000):
        rows.state = {"a": number}
        if number % 100 == 0:
            (one,) = entries(mailbox)  # its answer is lost each time
            assert (one["after"], one["state"]["rows"]) == (1, {"a": number})
            sizes.add(mailbox.bytes // 50)
    assert len(sizes) == 1, "it grows"
    assert mailbox.waiting == 0
    mailbox.acknowledge(mailbox.sequence)
    assert mailbox.bytes == 0


def test_a_late_acknowledgement_of_what_was_replaced_moves_nothing() -> None:
    rows = Rows({"a": 1})
    mailbox = watching(rows)
    entries(mailbox)
    rows.state = {"a": 2}
    (second,) = entries(mailbox)
    mailbox.acknowledge(1)  # of the first answer, when the second is on its way
    rows.state = {"a": 3}
    (third,) = entries(mailbox)
    assert (second["after"], third["after"], third["state"]["whole"]) == (0, 0, True)


def test_a_key_that_is_subscribed_to_anew_begins_whole_and_one_that_is_left_says_nothing() -> None:
    rows = Rows({"a": 1})
    mailbox = watching(rows)
    entries(mailbox)
    mailbox.acknowledge(1)
    mailbox.subscribe(MailboxKey("k", 2, "state", 1), rows)
    (one,) = entries(mailbox)
    assert (one["command"], one["after"], one["state"]["whole"]) == (2, 0, True)
    mailbox.unsubscribe("k")
    rows.state = {"a": 2}
    assert (mailbox.has_news, entries(mailbox), mailbox.bytes) == (False, [], 0)


def test_a_failure_of_one_key_leaves_the_others() -> None:
    mailbox = watching(Rows({"a": 1}))
    failing = MailboxKey("f", 2, "state", 1)
    mailbox.subscribe(failing, Rows({"a": 1}))
    mailbox.take()
    mailbox.fail(failing, {"status": 404})
    assert [(one["key"], "error" in one) for one in entries(mailbox)] == [("f", True), ("k", False)]
    assert [*mailbox.keys] == ["k"]


def test_every_key_has_its_turn_when_an_answer_has_no_room_for_all() -> None:
    mailbox: ClientMailbox[MailboxKey] = ClientMailbox(ChannelLimits(answer_messages=2))
    rows = [Rows({"a": 0}) for _ in range(5)]
    for number, one in enumerate(rows):
        mailbox.subscribe(MailboxKey(f"k{number}", number + 1, "state", 1), one)
    served: set[str] = set()
    for turn in range(1, 4):
        for one in rows:
            one.state = {"a": turn}
        served |= {entry["key"] for entry in entries(mailbox)}
        mailbox.acknowledge(mailbox.sequence)
    assert served == {f"k{number}" for number in range(5)}


def test_messages_and_states_share_one_sequence() -> None:
    mailbox = watching(Rows({"a": 1}))
    line = MailboxKey("m", 2, "lossy", 10)
    mailbox.subscribe(line)
    mailbox.offer(line, b"1", "c")
    first = entries(mailbox)
    mailbox.offer(line, b"2", "c")
    second = entries(mailbox)
    assert [(one["sequence"], one["key"]) for one in first] == [(1, "m"), (2, "k")]
    assert [(one["sequence"], one["key"]) for one in second] == [(1, "m"), (3, "m"), (4, "k")]
    mailbox.acknowledge(4)
    assert (mailbox.bytes, mailbox.has_news) == (0, False)


KEYS = st.sampled_from(["a", "b", "c"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("state"), st.dictionaries(KEYS, st.integers(0, 3))),
        st.tuples(st.sampled_from(["answered", "lost"]), st.none()),
    ),
    max_size=30,
)


@given(STEPS)
def test_whatever_is_lost_a_client_has_the_newest_state_with_the_next_answer(
    steps: list[tuple[str, State | None]],
) -> None:
    rows, reader = Rows({}), Reader()
    mailbox = watching(rows)
    for what, state in [*steps, ("answered", None)]:
        if what == "state":
            rows.state = state
            continue
        mailbox.acknowledge(reader.processed)
        told = entries(mailbox)
        if what == "answered":
            for one in told:
                reader.took(one)
            assert (reader.has or {}) == rows.state
