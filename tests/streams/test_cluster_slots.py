"""Which node of a cluster gets which command: decided without a cluster, answer by answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import AskError, ClusterDownError, MovedError, ResponseError, TryAgainError

from streamlease.protocol.errors import Indefinite, InvalidInput, StoreUnavailable, StreamleaseError
from streamlease.streams.redis.cluster_slots import (
    ATTEMPTS,
    SLOTS,
    Address,
    Answer,
    LookAgain,
    Topology,
    Writes,
    raise_failed,
    route,
    slot_of,
)
from streamlease.streams.redis.wire import Command

ONE, TWO = ("one", 1), ("two", 2)
GET: Command = ("GET", "{a}x")
SLOT = slot_of(GET) or 0

Node = Callable[[list[Command]], Any]


def known(owner: Address = ONE) -> Topology:
    topology = Topology()
    topology.learn([(0, SLOTS - 1, (owner[0].encode(), owner[1]))], owner)
    return topology


class Driven:
    """The generator, with nodes that answer what a test says."""

    def __init__(self, topology: Topology, **nodes: Node) -> None:
        self.topology = topology
        self.nodes = nodes
        self.writes: list[tuple[str, list[Command]]] = []
        self.waited: list[float] = []

    def run(self, *commands: Command, before: Any = (), behind: Any = ()) -> list[Answer]:
        steps = route(self.topology, before, commands, behind)
        outcomes: list[Any] | None = None
        while True:
            try:
                step = next(steps) if outcomes is None else steps.send(outcomes)
            except StopIteration as end:
                answers: list[Answer] = end.value
                return answers
            if isinstance(step, LookAgain):
                self.waited.append(step.seconds)
                self.topology.known = True
                outcomes = []
            else:
                assert isinstance(step, Writes)
                self.writes += [(node[0], sent) for node, sent in step.writes]
                outcomes = [self.nodes[node[0]](sent) for node, sent in step.writes]


def says(*replies: Any) -> Node:
    """A node that answers its writes with these, one after the other, and the last one for ever."""
    left = list(replies)
    return lambda sent: left.pop(0) if len(left) > 1 else left[0]


def test_commands_go_to_the_nodes_that_own_their_keys_in_one_write_each() -> None:
    topology = known()
    topology.move(SLOT, TWO)
    driven = Driven(topology, one=says([b"b", b"c"]), two=says([b"a"]))
    others: list[Command] = [("GET", "{b}x"), ("GET", "{c}x")]
    answers = driven.run(GET, *others)
    assert [answer.reply for answer in answers] == [b"a", b"b", b"c"]
    assert sorted(driven.writes) == [("one", others), ("two", [GET])]


def test_what_is_sent_before_and_behind_goes_to_every_node() -> None:
    driven = Driven(known(), one=says([b"OK", b"a", 1, 2]))
    (answer,) = driven.run(GET, before=[("CLIENT", "X")], behind=[("WAIT", 1, 0), ("TIME",)])
    assert answer == Answer(b"a", (1, 2))
    assert driven.writes == [("one", [("CLIENT", "X"), GET, ("WAIT", 1, 0), ("TIME",)])]


def test_a_slot_that_has_moved_is_noted_and_asked_for_there() -> None:
    driven = Driven(known(), one=says([MovedError(f"{SLOT} two:2")]), two=says([b"a"]))
    assert driven.run(GET) == [Answer(b"a", ())]
    assert driven.topology.owners[SLOT] == TWO
    assert driven.waited == []


def test_a_key_that_has_moved_already_is_asked_for_once_behind_asking() -> None:
    driven = Driven(known(), one=says([AskError(f"{SLOT} two:2")]), two=says([b"OK", b"a"]))
    assert driven.run(GET) == [Answer(b"a", ())]
    assert driven.writes[-1] == ("two", [("ASKING",), GET])
    assert driven.topology.owners[SLOT] == ONE


@pytest.mark.parametrize(
    "first",
    [
        pytest.param([TryAgainError("keys are moving")], id="TRYAGAIN"),
        pytest.param([ClusterDownError("no owner")], id="CLUSTERDOWN"),
        pytest.param(StoreUnavailable("no connection"), id="nothing could be sent"),
    ],
)
def test_what_did_not_run_is_sent_again_after_a_look_at_who_has_what(first: Any) -> None:
    driven = Driven(known(), one=says(first, [b"a"]))
    assert driven.run(GET) == [Answer(b"a", ())]
    assert len(driven.waited) == 1
    assert driven.waited[0] > 0


def test_what_may_have_run_is_never_sent_again() -> None:
    error = Indefinite("no answer")
    driven = Driven(known(), one=says(error))
    assert driven.run(GET) == [Answer(error, ())]
    assert len(driven.writes) == 1


def test_an_error_reply_is_an_answer() -> None:
    error = ResponseError("WRONGTYPE")
    driven = Driven(known(), one=says([error]))
    assert driven.run(GET) == [Answer(error, ())]


def test_it_is_not_tried_for_ever() -> None:
    driven = Driven(known(), one=says([ClusterDownError("no owner")]))
    (answer,) = driven.run(GET)
    assert isinstance(answer.reply, StoreUnavailable)
    assert "no owner" in str(answer.reply)
    assert len(driven.writes) == ATTEMPTS


def test_who_has_what_is_asked_first() -> None:
    topology = known()
    topology.known = False
    driven = Driven(topology, one=says([b"a"]))
    driven.run(GET)
    assert driven.waited == [0.0]


def test_keys_of_one_command_lie_in_one_slot() -> None:
    assert slot_of(("DEL", "{a}x", "{a}y")) == SLOT
    assert slot_of(("PING",)) is None
    with pytest.raises(InvalidInput, match="DEL has keys in 2 slots"):
        slot_of(("DEL", "{a}x", "{b}y"))


@pytest.mark.parametrize(
    ("failed", "kind"),
    [
        ([StoreUnavailable("a"), StoreUnavailable("b")], StoreUnavailable),
        ([StoreUnavailable("a")], Indefinite),
        ([StoreUnavailable("a"), Indefinite("b")], Indefinite),
    ],
)
def test_some_failures_of_two_commands_together(
    failed: list[StreamleaseError], kind: type[StreamleaseError]
) -> None:
    with pytest.raises(kind):
        raise_failed(failed, 2)
    raise_failed([], 2)
