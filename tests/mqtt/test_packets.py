"""Which deliveries are new: case by case, and against brokers that are played with connections that end."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from streamlease.gateway.mqtt.core import packets as module
from streamlease.gateway.mqtt.core.packets import LARGEST, FormerDelivery, PacketKind, Packets

MOST = 4


def stand(packets: Packets[str]) -> Packets[str]:
    packets.connected(session_present=True)
    return packets


def run_through(packets: Packets[str], first: int, count: int) -> None:
    """So many messages come, are durable, and are acknowledged."""
    for number in range(first, first + count):
        kind, one = packets.came(number % LARGEST or LARGEST, b"%d" % number, "x", again=False)
        assert kind is PacketKind.NEW
        assert packets.settled(one)
        packets.acknowledged(one)


def test_what_is_in_hand_is_known_whatever_the_broker_counts_like() -> None:
    packets: Packets[str] = stand(Packets(MOST))
    _, one = packets.came(1, b"a", "a", again=False)
    packets.disconnected()
    stand(packets)
    assert packets.came(1, b"a", "a", again=True) == (PacketKind.UNDER_WAY, one)
    assert packets.settled(one)
    assert packets.came(1, b"a", "a", again=True) == (PacketKind.DURABLE, one)


def test_what_became_durable_without_a_connection_is_acknowledged_when_it_comes_again() -> None:
    packets: Packets[str] = stand(Packets(MOST))
    _, one = packets.came(1, b"a", "a", again=False)
    packets.disconnected()
    assert not packets.settled(one)
    stand(packets)
    assert packets.came(1, b"a", "a", again=True) == (PacketKind.DURABLE, one)


def test_an_acknowledgement_never_goes_to_a_connection_that_did_not_bring_the_message() -> None:
    packets: Packets[str] = stand(Packets(MOST))
    _, one = packets.came(1, b"a", "a", again=False)
    stand(packets)
    assert not packets.settled(one)


def test_a_session_that_is_gone_takes_its_packets_along() -> None:
    packets: Packets[str] = stand(Packets(MOST))
    _, one = packets.came(1, b"a", "a", again=False)
    packets.connected(session_present=False)
    assert packets.came(1, b"a", "a", again=True)[0] is PacketKind.NEW
    assert not packets.settled(one)


def test_other_content_is_another_message() -> None:
    packets: Packets[str] = stand(Packets(MOST))
    packets.came(1, b"a", "a", again=False)
    assert packets.came(1, b"b", "b", again=True)[0] is PacketKind.NEW


def test_qos_0_is_always_new_and_never_acknowledged() -> None:
    packets: Packets[str] = stand(Packets(MOST))
    for _ in range(2):
        kind, one = packets.came(0, b"a", "a", again=False)
        assert kind is PacketKind.NEW
        assert not packets.settled(one)
    assert len(packets) == 0


@pytest.mark.parametrize(("before", "kind"), [(7, PacketKind.NEW), (8, PacketKind.DURABLE)])
def test_an_acknowledged_one_is_known_once_the_broker_has_shown_that_it_counts(
    before: int, kind: PacketKind
) -> None:
    packets: Packets[str] = stand(Packets(MOST))
    run_through(packets, 1, before)
    stand(packets)
    assert packets.came(before, b"%d" % before, "x", again=True)[0] is kind


def test_identifiers_may_begin_anew_at_their_end_and_leave_some_out() -> None:
    packets: Packets[str] = stand(Packets(MOST))
    run_through(packets, LARGEST - 10, 8)
    run_through(packets, LARGEST + 3, 8)
    assert packets.trusted
    stand(packets)
    assert packets.came(3, b"%d" % (LARGEST + 3), "x", again=True)[0] is PacketKind.DURABLE


def test_a_broker_that_uses_an_identifier_again_at_once_is_not_trusted() -> None:
    packets: Packets[str] = stand(Packets(MOST))
    for _ in range(100):
        _, one = packets.came(1, b"ON", "ON", again=False)
        packets.settled(one)
        packets.acknowledged(one)
    stand(packets)
    assert packets.came(1, b"ON", "ON", again=True)[0] is PacketKind.NEW


def test_what_the_process_before_noted_is_asked_for() -> None:
    notes = [FormerDelivery(n, b"%d" % n, (7, n)) for n in range(3, 9)]
    packets: Packets[str] = stand(Packets(MOST, notes, (8, 8)))
    kind, one = packets.came(8, b"8", "x", again=True)
    assert kind is PacketKind.SUSPECT
    assert one.former == notes[-1]
    assert packets.came(7, b"other", "x", again=True)[0] is PacketKind.NEW
    assert packets.came(9, b"9", "x", again=True)[0] is PacketKind.NEW
    untrusted: Packets[str] = stand(Packets(MOST, notes, (7, 8)))
    assert untrusted.came(8, b"8", "x", again=True)[0] is PacketKind.NEW


def counting(last: int, used: set[int]) -> int:
    return last % LARGEST + 1


def lowest_free(last: int, used: set[int]) -> int:
    return next(number for number in range(1, LARGEST + 1) if number not in used)


class PlayedBroker:
    """A session of a broker, and a bridge that crashes, and connections that end at any point.

    Contents are two, as of a switch: identity is nowhere but in the identifier.
    """

    def __init__(self, seed: int, next_packet: Callable[[int, set[int]], int], trust: int) -> None:
        self.chance = random.Random(seed)
        self.next_packet = next_packet
        self.trust = trust
        self.flying: dict[int, tuple[int, bool]] = {}
        """Packet -> number of the message, and whether it was sent before."""
        self.number = self.last = 0
        self.appended: Counter[int] = Counter()
        self.done: set[int] = set()
        self.notes: list[FormerDelivery] = []
        self.durable: set[tuple[int, int]] = set()
        self.process = 0
        self.there = self.back = True
        """Whether the connection still carries what is sent, and what is acknowledged."""
        self.packets = self.begin()

    def begin(self) -> Packets[int]:
        counted = self.packets.counted if self.process else (0, 0)
        self.process += 1
        self.sequence = 0
        return Packets(MOST, self.notes[-2 * MOST :], counted)

    def play(self, connections: int) -> None:
        for _ in range(connections):
            if self.chance.random() < 0.3:
                self.packets = self.begin()
            self.packets.connected(session_present=True)
            self.there = self.back = True
            for packet in list(self.flying):
                self.send(packet)
            for _ in range(self.chance.randrange(3 * MOST)):
                if len(self.flying) >= MOST:
                    break
                self.last = self.next_packet(self.last, set(self.flying))
                self.number += 1
                self.flying[self.last] = (self.number, False)
                self.send(self.last)
            self.packets.disconnected()

    def send(self, packet: int) -> None:
        number, again = self.flying[packet]
        self.flying[packet] = (number, True)
        self.there = self.there and self.chance.random() < 0.9
        if not self.there:  # this does not arrive, nor does what follows it
            return
        content = b"ON" if number % 2 else b"OFF"
        kind, one = self.packets.came(packet, content, number, again=again)
        if kind is PacketKind.UNDER_WAY:
            raise AssertionError("nothing waits here")
        if kind is PacketKind.NEW or (
            kind is PacketKind.SUSPECT and one.former is not None and one.former.position not in self.durable
        ):
            self.sequence += 1
            position = (self.process, self.sequence)
            self.notes.append(FormerDelivery(packet, content, position))
            if self.chance.random() < 0.1:  # it crashes between note and append
                self.packets = self.begin()
                self.packets.connected(session_present=True)
                self.there = False
                return
            self.durable.add(position)
            self.appended[number] += 1
        if self.packets.settled(one):
            self.packets.acknowledged(one)
            self.back = self.back and self.chance.random() < 0.9
            if self.back:  # the acknowledgement arrives
                del self.flying[packet]
                self.done.add(number)

    @property
    def lost(self) -> set[int]:
        return {number for number in self.done if not self.appended[number]}


@pytest.mark.parametrize("next_packet", [counting, lowest_free])
@pytest.mark.parametrize("seed", range(20))
def test_no_message_is_lost(seed: int, next_packet: Callable[[int, set[int]], int]) -> None:
    broker = PlayedBroker(seed, next_packet, module.TRUST)
    broker.play(300)
    assert broker.number > 300
    assert broker.lost == set()


def test_the_play_finds_trust_without_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard's own test: who trusts every broker loses messages of one that uses identifiers again."""
    monkeypatch.setattr(module, "TRUST", 0)
    monkeypatch.setattr(Packets, "_forget", lambda _self: None)
    lost = 0
    for seed in range(20):
        broker = PlayedBroker(seed, lowest_free, 0)
        monkeypatch.setattr(broker.packets, "_most", 100)
        broker.play(300)
        lost += len(broker.lost)
    assert lost > 0


def test_few_come_twice_from_a_broker_that_counts() -> None:
    broker = PlayedBroker(1, counting, module.TRUST)
    broker.play(300)
    broker.appended.clear()  # it is known by now
    broker.play(300)
    again = sum(count - 1 for count in broker.appended.values())
    assert again == 0
