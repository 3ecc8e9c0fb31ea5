"""What Ray's subscriber promises, by the client's machine; the table is in test_ray_table.py.

`Wire` is a gateway as the machine sees it: it takes commands and gives answers, and can be another one.
"""

from __future__ import annotations

from typing import Any

import pytest

from streamlease.http.core.channel_machine import (
    ChannelDropped,
    ChannelEvent,
    ChannelFailed,
    ChannelMachine,
    ChannelMessage,
)

Document = dict[str, Any]


class Wire:
    """Between a machine and a gateway that does what it is told to."""

    def __init__(self, machine: ChannelMachine, gateway: str = "one") -> None:
        self.machine = machine
        self.gateway = gateway
        self.sequence = 0
        self.command = 0
        self.taken: list[list[Document]] = []
        self.polls: list[Document] = []

    def commands(self) -> list[Document]:
        """The machine's next batch is taken."""
        batch = [*self.machine.next_commands()]
        if batch:
            self.take(batch)
        return batch

    def take(self, batch: list[Document]) -> None:
        self.taken.append(batch)
        self.command = batch[-1]["command"]
        subscriptions = [
            {"key": one["subscribe"], "command": one["command"], "cursor": f"begin {one['since']}"}
            for one in batch
            if "subscribe" in one
        ]
        self.machine.commands_taken({"gateway": self.gateway, "subscriptions": subscriptions})

    def poll(self, *entries: Document, cursor: str | None = None) -> list[ChannelEvent]:
        """The machine polls, and gets these entries; each without a sequence has the next one."""
        self.polls.append(self.machine.next_poll(0.0))
        for entry in entries:
            self.sequence = entry.setdefault("sequence", self.sequence + 1)
        return self.machine.polled(
            {
                "gateway": self.gateway,
                "command": self.command,
                "messages": [one for one in entries if "error" not in one],
                "failures": [one for one in entries if "error" in one],
                "cursor": cursor,
            }
        )

    def number(self, key: str) -> int:
        """The command under which the gateway has a key."""
        numbers = [one["command"] for batch in self.taken for one in batch if one.get("subscribe") == key]
        return int(numbers[-1])

    def message(self, key: str, payload: str, **more: Any) -> Document:
        command = more.pop("command", None) or self.number(key)
        message = {"message": {"payload": payload}, "cursor": f"behind {payload}"}
        return {"key": key, "command": command, **message, **more}


def got(events: list[ChannelEvent]) -> list[tuple[str, str]]:
    return [(one.key, one.message["payload"]) for one in events if isinstance(one, ChannelMessage)]


@pytest.fixture
def machine() -> ChannelMachine:
    return ChannelMachine(batch=3)


@pytest.fixture
def wire(machine: ChannelMachine) -> Wire:
    return Wire(machine)


def subscribed(wire: Wire, *keys: str) -> None:
    for key in keys:
        wire.machine.subscribe(key, f"a/{key}")
    while wire.commands():
        pass


def test_subscribe_receive_twice_unsubscribe(machine: ChannelMachine, wire: Wire) -> None:
    assert machine.is_idle
    subscribed(wire, "k")
    assert got(wire.poll(wire.message("k", "x"))) == [("k", "x")]
    assert got(wire.poll(wire.message("k", "y"))) == [("k", "y")]
    machine.unsubscribe("k")
    assert [one.get("unsubscribe") for one in wire.commands()] == ["k"]
    assert machine.is_idle  # nothing is left behind


def test_a_message_below_the_last_one_is_left_out(machine: ChannelMachine, wire: Wire) -> None:
    subscribed(wire, "k")
    assert got(wire.poll(wire.message("k", "x", sequence=4))) == [("k", "x")]
    assert got(wire.poll(wire.message("k", "w", sequence=3), wire.message("k", "x", sequence=4))) == []
    assert machine.next_poll(0)["processed"] == 4


def test_another_gateway_begins_a_sequence_anew(machine: ChannelMachine, wire: Wire) -> None:
    subscribed(wire, "k", "quiet")
    wire.poll(wire.message("k", "x", sequence=10))
    other = Wire(machine, "two")
    assert got(other.poll()) == []
    assert machine.next_poll(0) == {"gateway": "two", "processed": 0, "wait": 0}
    batch = other.commands()  # ours: it goes on from its cursors, and misses nothing
    assert {one["subscribe"]: one["since"] for one in batch} == {"k": "behind x", "quiet": "begin latest"}
    assert got(other.poll(other.message("k", "y", sequence=1))) == [("k", "y")]


def test_many_keys_have_one_poll(machine: ChannelMachine, wire: Wire) -> None:
    keys = [f"k{n}" for n in range(5)]
    subscribed(wire, *keys)
    assert got(wire.poll(*(wire.message(key, key) for key in keys))) == [(key, key) for key in keys]
    assert len(wire.polls) == 1


def test_a_key_is_polled_again_and_again(machine: ChannelMachine, wire: Wire) -> None:
    subscribed(wire, "k")
    for number in range(3):
        assert got(wire.poll(wire.message("k", str(number)))) == [("k", str(number))]
    assert [one["processed"] for one in wire.polls] == [0, 1, 2]


def test_a_foreign_key_is_left_out(machine: ChannelMachine, wire: Wire) -> None:
    subscribed(wire, "k")
    assert got(wire.poll(wire.message("other", "x", command=1))) == []
    assert machine.next_poll(0)["processed"] == 1


def test_a_filter_with_wildcards_is_a_whole_channel(machine: ChannelMachine, wire: Wire) -> None:
    machine.subscribe("all", "a/#")
    (command,) = wire.commands()
    assert command["filter"] == "a/#"
    assert got(wire.poll(wire.message("all", "x"), wire.message("all", "y"))) == [("all", "x"), ("all", "y")]


def test_a_late_answer_for_an_unsubscribed_key_is_left_out(machine: ChannelMachine, wire: Wire) -> None:
    subscribed(wire, "k", "other")
    late = wire.message("k", "x")
    machine.unsubscribe("k")
    machine.subscribe("k", "a/k")  # ours: not even if it is subscribed to again
    assert got(wire.poll(late, wire.message("other", "y"))) == [("other", "y")]
    wire.commands()
    assert got(wire.poll(late | {"sequence": 3})) == []
    assert got(wire.poll(wire.message("k", "new"))) == [("k", "new")]


def test_a_late_answer_for_an_unsubscribed_whole_is_left_out(machine: ChannelMachine, wire: Wire) -> None:
    machine.subscribe("all", "a/#")
    wire.commands()
    late = wire.message("all", "x")
    machine.unsubscribe("all")
    assert got(wire.poll(late)) == []
    wire.commands()
    assert machine.is_idle  # polling ends


def test_a_poll_that_fails_loses_nothing(machine: ChannelMachine, wire: Wire) -> None:
    """Ray fails every key then. Ours goes on, at this gateway or at another one."""
    subscribed(wire, "k")
    wire.poll(wire.message("k", "x"))
    machine.next_poll(0)  # its answer is lost
    assert machine.next_poll(0) == {"gateway": "one", "processed": 1, "wait": 0}
    assert got(wire.poll(wire.message("k", "y", sequence=2))) == [("k", "y")]
    assert not machine.next_commands()  # it is still subscribed there


def test_unsubscribing_while_messages_are_handled(machine: ChannelMachine, wire: Wire) -> None:
    subscribed(wire, "k", "other")
    for event in wire.poll(wire.message("k", "x"), wire.message("other", "y")):
        machine.unsubscribe(event.key)
    assert [one.get("unsubscribe") for one in wire.commands()] == ["k", "other"]
    assert machine.is_idle


def test_one_command_makes_one_batch(machine: ChannelMachine, wire: Wire) -> None:
    machine.subscribe("k", "a/k")
    assert len(wire.commands()) == 1
    machine.unsubscribe("k")
    assert len(wire.commands()) == 1
    wire.poll()
    assert not wire.commands()  # polls send none


def test_commands_that_come_meanwhile_make_the_next_batch(machine: ChannelMachine, wire: Wire) -> None:
    machine.subscribe("k1", "a/1")
    first = [*machine.next_commands()]
    machine.subscribe("k2", "a/2")
    machine.unsubscribe("k1")
    machine.subscribe("k3", "a/3")
    wire.take(first)
    second = wire.commands()
    assert [len(first), len(second)] == [1, 3]
    assert [one.get("subscribe") or one.get("unsubscribe") for one in second] == ["k2", "k1", "k3"]
    assert [one["command"] for one in first + second] == [1, 2, 3, 4]


def test_a_batch_has_so_many_commands(machine: ChannelMachine, wire: Wire) -> None:
    machine.subscribe("k0", "a/0")
    first = [*machine.next_commands()]
    for number in range(1, 5):
        machine.subscribe(f"k{number}", f"a/{number}")
    wire.take(first)
    assert [len(first), len(wire.commands()), len(wire.commands())] == [1, 3, 1]


def test_one_batch_is_in_flight(machine: ChannelMachine, wire: Wire) -> None:
    machine.subscribe("k1", "a/1")
    first = [*machine.next_commands()]
    machine.subscribe("k2", "a/2")
    machine.subscribe("k3", "a/3")
    assert not machine.next_commands()
    machine.commands_lost()
    again = [*machine.next_commands()]  # the same number, so it is taken once
    assert again[0] == first[0]
    wire.take(again)
    assert len(again) + len(wire.commands()) == 3


def test_a_refused_batch_costs_only_the_refused_key(machine: ChannelMachine, wire: Wire) -> None:
    """Ray gives up the whole queue. Ours finds the command that is refused, and sends the others."""
    for key in ("good", "bad", "better"):
        machine.subscribe(key, f"a/{key}")
    failed = []
    for _ in range(20):
        batch = [*machine.next_commands()]
        if any(one.get("subscribe") == "bad" for one in batch):
            failed += machine.commands_refused({"detail": "no"})
        elif batch:
            wire.take(batch)
    assert failed == [ChannelFailed("bad", {"detail": "no"}, None)]
    assert [*machine.keys] == ["good", "better"]
    assert wire.number("good") == 1 and wire.number("better") == 3


def test_a_failure_is_told_of_its_key_only(machine: ChannelMachine, wire: Wire) -> None:
    subscribed(wire, "k", "other")
    wire.poll(wire.message("k", "x"))
    failure = {"key": "k", "command": wire.number("k"), "error": {"status": 410, "oldest": "o"}}
    assert wire.poll(failure) == [ChannelFailed("k", {"status": 410, "oldest": "o"}, "behind x")]
    assert [*machine.keys] == ["other"]
    assert got(wire.poll(wire.message("other", "y"))) == [("other", "y")]


def test_what_is_subscribed_to_follows_the_last_command(machine: ChannelMachine, wire: Wire) -> None:
    machine.subscribe("k", "a/1")
    assert [*machine.keys] == ["k"]
    machine.unsubscribe("k")
    assert [*machine.keys] == []
    machine.subscribe("k", "a/2")
    assert [*machine.keys] == ["k"]
    wire.commands()  # also while they were all in the queue: the last one wins
    assert [one.get("filter") for one in wire.taken[0]] == [None, None, "a/2"]


def test_an_invalid_command_ends_its_key_alone(machine: ChannelMachine, wire: Wire) -> None:
    machine.subscribe("bad", "a/#/b")
    machine.next_commands()
    (failed,) = machine.commands_refused({"status": 400})
    assert failed.key == "bad" and machine.is_idle


# -- what ours promises beyond ------------------------------------------------------------------------------


def test_dropped_messages_are_told(wire: Wire) -> None:
    subscribed(wire, "k")
    assert wire.poll({"key": "k", "command": 1, "dropped": 7}) == [ChannelDropped("k", 7)]


def test_quiet_keys_move_on_with_the_channel(machine: ChannelMachine, wire: Wire) -> None:
    subscribed(wire, "busy", "quiet")
    wire.poll(wire.message("busy", "x"), cursor="all")
    machine.subscribe("new", "a/new", since="earliest")  # not there yet when the cursor was told
    assert [machine.cursor(key) for key in ("busy", "quiet", "new")] == ["all", "all", None]
    wire.poll(wire.message("busy", "y"))
    assert [machine.cursor(key) for key in ("busy", "quiet")] == ["behind y", "all"]
    other = Wire(machine, "two")
    other.poll()
    found: dict[str, str] = {}
    while batch := other.commands():
        found |= {one["subscribe"]: one["since"] for one in batch}
    assert found == {"busy": "behind y", "quiet": "all", "new": "earliest"}


def test_a_batch_that_was_taken_without_an_answer_goes_to_another_gateway_with_what_came(
    machine: ChannelMachine, wire: Wire
) -> None:
    machine.subscribe("k", "a/k")
    (command,) = machine.next_commands()
    wire.command = 1
    assert got(wire.poll(wire.message("k", "x", command=1))) == [("k", "x")]
    machine.commands_lost()
    other = Wire(machine, "two")
    other.poll()
    (again,) = other.commands()
    assert (again["command"], again["since"]) == (command["command"], "behind x")


def test_commands_go_to_another_gateway_before_the_polls(machine: ChannelMachine, wire: Wire) -> None:
    subscribed(wire, "old")
    wire.poll(wire.message("old", "x"))
    other = Wire(machine, "two")  # the former one is dead, and the poll does not know it yet
    machine.subscribe("new", "a/new")
    other.commands()
    assert got(other.poll(other.message("new", "y"))) == [("new", "y")]
    assert [(one["subscribe"], one["since"]) for one in other.commands()] == [("old", "behind x")]
