"""States over a channel, as the client's machine takes them: right behind what it has, or anew."""

from __future__ import annotations

from typing import Any

from streamlease.http.core.channel_machine import ChannelEvent, ChannelMachine, ChannelState


def taken(machine: ChannelMachine, gateway: str = "g") -> list[dict[str, Any]]:
    """The commands that go out, which are taken."""
    batch = [*machine.next_commands()]
    machine.commands_taken(
        {
            "gateway": gateway,
            "command": batch[-1]["command"] if batch else 0,
            "subscriptions": [
                {"key": one["subscribe"], "command": one["command"], "cursor": None}
                for one in batch
                if "subscribe" in one
            ],
        }
    )
    return batch


def polled(machine: ChannelMachine, *entries: tuple[int, int, int], gateway: str = "g") -> list[ChannelEvent]:
    """What an answer brings under the key `k`: sequence, command, after."""
    messages = [
        {"sequence": sequence, "key": "k", "command": command, "after": after, "state": {"n": sequence}}
        for sequence, command, after in entries
    ]
    answer = {"gateway": gateway, "command": 1, "messages": messages, "failures": [], "cursor": None}
    return machine.polled(answer)


def following() -> ChannelMachine:
    machine = ChannelMachine()
    machine.follow("k")
    assert taken(machine) == [{"command": 1, "subscribe": "k", "policy": "state"}]
    return machine


def test_differences_are_taken_right_behind_what_is_there() -> None:
    machine = following()
    assert polled(machine, (1, 1, 0)) == [ChannelState("k", {"n": 1}, is_first=True)]
    assert polled(machine, (2, 1, 1)) == [ChannelState("k", {"n": 2}, is_first=False)]
    assert polled(machine, (2, 1, 1)) == [], "it is here already"
    assert polled(machine, (5, 1, 2)) == [ChannelState("k", {"n": 5}, is_first=False)]
    assert machine.next_poll(1.0)["processed"] == 5
    assert taken(machine) == []


def test_a_difference_to_another_state_is_left_out_and_the_key_begins_anew() -> None:
    machine = following()
    polled(machine, (1, 1, 0))
    assert polled(machine, (3, 1, 2)) == []
    assert taken(machine) == [{"command": 2, "subscribe": "k", "policy": "state"}]
    assert polled(machine, (4, 1, 3)) == [], "of the former subscription"
    assert polled(machine, (5, 2, 0)) == [ChannelState("k", {"n": 5}, is_first=True)]


def test_at_another_gateway_a_state_begins_anew() -> None:
    machine = following()
    polled(machine, (7, 1, 0))
    assert polled(machine, gateway="h") == []
    assert taken(machine, "h") == [{"command": 2, "subscribe": "k", "policy": "state"}]
    assert polled(machine, (1, 2, 0), gateway="h") == [ChannelState("k", {"n": 1}, is_first=True)]
    machine.unsubscribe("k")
    assert taken(machine, "h") == [{"command": 3, "unsubscribe": "k"}]
    assert polled(machine, (2, 2, 1), gateway="h") == []
