"""What Ray's publisher promises, at the gateway; the table is in test_ray_table.py."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streamlease.channels.core.channel_limits import ChannelLimits
from streamlease.channels.core.client_mailbox import ClientMailbox
from streamlease.gateway.channels.core.channel_commands import Policy
from streamlease.gateway.channels.core.log_keys import ChannelKey, KeyEvent
from streamlease.gateway.core.interests import Interests
from tests.agent.helpers import until
from tests.awake import within
from tests.gateway.channels.channel_client import payloads
from tests.gateway.channels.conftest import Desk, StartDesk


async def parked(desk: Desk, name: str = "hand") -> None:
    """Wait until the client has a poll open."""
    await until(lambda: desk.channel(name).poll.is_open)


async def came(desk: Desk, count: int, name: str = "hand") -> None:
    """Wait until so many messages wait for the client."""
    await until(lambda: desk.channel(name).mailbox.waiting >= count)


def live_key(name: str = "k", policy: Policy = "critical", limit: int = 1000) -> ChannelKey:
    key = ChannelKey(name, 1, "a/#", policy, limit, "begin")
    key.step(KeyEvent.CAUGHT_UP)
    return key


def box(*keys: ChannelKey, **limits: Any) -> ClientMailbox[ChannelKey]:
    mailbox: ClientMailbox[ChannelKey] = ClientMailbox(ChannelLimits(**limits))
    for key in keys:
        mailbox.subscribe(key)
    return mailbox


def bodies(mailbox: ClientMailbox) -> list[bytes]:
    return [one.body for one in mailbox.take()]


# -- the index: who is interested in what --------------------------------------------------------------------


def test_index_of_one_client_and_one_key() -> None:
    index: Interests[str] = Interests()
    index.add("a/1", "one")
    assert index.of(["a/1"]) == ["one"]
    assert index.of(["a/2"]) == []


def test_index_of_many_clients_and_one_key() -> None:
    index: Interests[str] = Interests()
    for who in ("one", "two", "three"):
        index.add("a/1", who)
        index.add(f"b/{who}", who)
    assert index.of(["a/1"]) == ["one", "two", "three"]
    assert index.of(["b/two"]) == ["two"]


def test_index_forgets_a_key_that_nobody_wants() -> None:
    index: Interests[str] = Interests()
    index.add("a/1", "one")
    index.remove("a/1", "one")
    assert index.of(["a/1"]) == [] and len(index) == 0
    assert index._root.below == {}


def test_index_takes_a_second_erasure() -> None:
    index: Interests[str] = Interests()
    for who in ("one", "two"):
        index.add("a/1", who)
    for _ in range(2):
        index.remove("a/1", "one")
        index.remove("a/none", "one")
    assert index.of(["a/1"]) == ["two"]


async def test_index_forgets_a_client_under_all_keys(desk: Desk) -> None:
    hand, other = desk.hand(), desk.hand("other")
    for one in (hand, other):
        await one.commands(*({"subscribe": f"k{n}", "filter": f"a/{n}"} for n in range(5)))
        await one.poll(wait=0)
    desk.channels.close(desk.channel())
    await desk.publish("a/3", "x")
    assert payloads(await other.until(1)) == ["x"]
    desk.channels.close(desk.channel("other"))
    assert desk.channels.live.count == 0


def test_index_has_a_client_once_under_a_key() -> None:
    index: Interests[str] = Interests()
    index.add("a/1", "one")
    index.add("a/1", "one")
    assert index.of(["a/1"]) == ["one"]
    index.remove("a/1", "one")
    assert index.of(["a/1"]) == []


# -- the mailbox of one client -------------------------------------------------------------------------------


async def test_acknowledged_messages_go_and_only_by_their_gateway(desk: Desk) -> None:
    hand = desk.hand()
    await hand.subscribe("k", "a/#")
    await desk.publish("a/1", "x", "y")
    first = await hand.until(2)
    for gateway in (None, "another-1"):
        told = (await hand.post_poll(gateway=gateway, processed=2, wait=0.0)).json()
        assert told["messages"] == first
    told = (await hand.post_poll(gateway=hand.gateway, processed=2, wait=0.0)).json()
    assert told["messages"] == []
    assert desk.channel().mailbox.bytes == 0


def test_an_answer_has_so_many_messages() -> None:
    key = live_key()
    mailbox = box(key, answer_messages=5)
    for number in range(10):
        mailbox.offer(key, b"%d" % number, "c")
    assert [one.sequence for one in mailbox.take()] == [1, 2, 3, 4, 5]
    mailbox.acknowledge(5)
    assert [one.sequence for one in mailbox.take()] == [6, 7, 8, 9, 10]
    mailbox.acknowledge(10)
    assert not mailbox.has_news and mailbox.bytes == 0


async def test_a_request_says_that_the_client_lives(desk: Desk) -> None:
    hand = desk.hand()
    await hand.subscribe("k", "a/#")
    for ask in (lambda: hand.poll(wait=0), lambda: hand.unsubscribe("none")):
        channel = desk.channel()
        channel.poll.last_seen -= 50
        await ask()
        desk.channels.forget_dead(asyncio.get_running_loop().time() + 20)
        assert desk.channel() is channel


async def test_a_client_without_a_poll_is_dead(desk: Desk) -> None:
    hand = desk.hand()
    await hand.subscribe("k", "a/#", since="earliest")
    await hand.poll(wait=0)
    await desk.publish("a/1", "x")
    desk.channels.forget_dead(asyncio.get_running_loop().time() + 61)
    assert len(desk.channels) == 0 and desk.channels.live.count == 0
    before = hand.gateway
    assert (await hand.poll(wait=30))["messages"] == []  # at once, and from another gateway
    assert hand.gateway != before
    await hand.subscribe("k", "a/#", since="earliest")  # ours: nothing is lost
    assert payloads(await hand.until(1)) == ["x"]


async def test_a_client_lives_that_polls_just_in_time(desk: Desk) -> None:
    hand = desk.hand()
    await hand.subscribe("k", "a/#")
    await hand.poll(wait=0)
    channel = desk.channel()
    desk.channels.forget_dead(channel.poll.last_seen + 60)
    poll = asyncio.ensure_future(hand.poll(wait=30))
    await parked(desk)
    desk.channels.forget_dead(channel.poll.last_seen + 1000)  # a parked poll is life
    await desk.publish("a/1", "x")
    assert payloads((await poll)["messages"]) == ["x"]
    desk.channels.forget_dead(channel.poll.last_seen + 60)
    assert desk.channel() is channel


# -- publishing ----------------------------------------------------------------------------------------------


async def test_a_message_answers_a_parked_poll(desk: Desk) -> None:
    hand = desk.hand()
    await hand.subscribe("k", "a/#")
    poll = asyncio.ensure_future(hand.poll(wait=30))
    await parked(desk)
    await desk.publish("a/1", "x")
    assert payloads((await poll)["messages"]) == ["x"]


async def test_without_a_poll_a_message_waits(desk: Desk) -> None:
    hand = desk.hand()
    await hand.subscribe("k", "a/#")
    await desk.publish("a/1", "x")
    await came(desk, 1)
    assert payloads((await hand.poll(wait=0))["messages"]) == ["x"]


async def test_many_keys_of_one_client_come_in_order(desk: Desk) -> None:
    hand = desk.hand()
    await hand.commands(*({"subscribe": f"k{n}", "filter": f"a/{n}"} for n in range(10)))
    for number in range(30):
        await desk.publish(f"a/{number % 10}", str(number))
    found = await hand.until(30)
    assert payloads(found) == [str(number) for number in range(30)]
    assert [one["key"] for one in found] == [f"k{number % 10}" for number in range(30)]


async def test_keys_of_many_clients_are_apart(desk: Desk) -> None:
    hands = [desk.hand(f"h{n}") for n in range(5)]
    for number, hand in enumerate(hands):
        await hand.subscribe("k", f"a/{number}")
    for number in range(5):
        await desk.publish(f"a/{number}", str(number))
    for number, hand in enumerate(hands):
        assert payloads(await hand.until(1)) == [str(number)]
        assert (await hand.poll(wait=0))["messages"] == []


async def test_many_clients_get_a_message_of_one_key(desk: Desk) -> None:
    hands = [desk.hand(f"h{n}") for n in range(5)]
    for hand in hands:
        await hand.subscribe("k", "a/1")
    await desk.publish("a/1", "x")
    for hand in hands:
        assert payloads(await hand.until(1)) == ["x"]


async def test_messages_are_gathered_in_order(desk: Desk) -> None:
    hand = desk.hand()
    await hand.subscribe("k", "a/#")
    await desk.publish("a/1", *map(str, range(10)))
    await came(desk, 10)
    assert payloads((await hand.poll())["messages"]) == [str(number) for number in range(10)]
    await desk.publish("a/1", *map(str, range(10, 20)))
    await came(desk, 10)
    assert payloads((await hand.poll())["messages"]) == [str(number) for number in range(10, 20)]


async def test_a_client_that_dies_with_its_poll_is_forgotten(desk: Desk) -> None:
    hand = desk.hand()
    await hand.subscribe("k", "a/#")
    poll = asyncio.ensure_future(hand.poll(wait=60))
    await parked(desk)
    desk.channels.forget_dead(asyncio.get_running_loop().time() + 61)
    assert len(desk.channels) == 1, "as long as it has a poll open it lives"
    poll.cancel()  # with its connection
    await until(lambda: not desk.channel().poll.is_open)
    desk.channels.forget_dead(asyncio.get_running_loop().time() + 61)
    assert len(desk.channels) == 0 and desk.channels.live.count == 0


async def test_a_client_that_never_polled_is_forgotten(desk: Desk) -> None:
    hand = desk.hand()
    await hand.subscribe("k", "a/#")
    desk.channels.forget_dead(asyncio.get_running_loop().time() + 61)
    assert len(desk.channels) == 0 and desk.channels.live.count == 0


async def test_unsubscribing_leaves_the_poll_open(desk: Desk) -> None:
    hand = desk.hand()
    await hand.commands({"subscribe": "k", "filter": "a/#"}, {"subscribe": "other", "filter": "b/#"})
    poll = asyncio.ensure_future(hand.poll(wait=30))
    await parked(desk)
    await hand.unsubscribe("never there")
    await hand.unsubscribe("k")
    await desk.publish("a/1", "x")
    await desk.publish("b/1", "y")
    assert payloads((await poll)["messages"]) == ["y"]


async def test_a_client_that_leaves_gets_its_poll_answered(desk: Desk) -> None:
    hand = desk.hand()
    await hand.subscribe("k", "a/#")
    poll = asyncio.ensure_future(hand.poll(wait=30))
    await parked(desk)
    assert (await hand.http.request("DELETE", hand.path, b"")).status == 204
    async with within(10):
        assert (await poll)["messages"] == []
    assert len(desk.channels) == 0
    assert (await hand.http.request("DELETE", hand.path, b"")).status == 204


async def test_registering_twice_gives_one_copy(desk: Desk) -> None:
    hand = desk.hand()
    subscribe = hand.numbered({"subscribe": "k", "filter": "a/#"})
    for _ in range(2):  # an answer was lost
        assert (await hand.post_commands([subscribe])).json()["subscriptions"][0]["key"] == "k"
    await desk.publish("a/1", "x")
    await came(desk, 1)
    await hand.subscribe("k", "a/#")  # and again by another command: it goes on
    await desk.publish("a/1", "y")
    await came(desk, 2)
    assert payloads((await hand.poll())["messages"]) == ["x", "y"]


async def test_a_lost_answer_is_sent_again_with_what_came(desk: Desk) -> None:
    hand = desk.hand()
    await hand.subscribe("k", "a/#")
    await desk.publish("a/1", "x")
    lost = await hand.poll(processed=0)
    await desk.publish("a/1", "y")
    await came(desk, 1)
    again = await hand.poll(processed=0)
    assert payloads(lost["messages"]) == ["x"] and payloads(again["messages"]) == ["x", "y"]
    assert [one["sequence"] for one in again["messages"]] == [1, 2]


async def test_a_failure_of_a_key_arrives_as_one(desk: Desk) -> None:
    hand = desk.hand()
    await hand.commands({"subscribe": "k", "filter": "nowhere/#"}, {"subscribe": "other", "filter": "a/#"})
    (failure,) = (await hand.poll())["failures"]
    assert failure["key"] == "k" and failure["error"]["type"].endswith("unknown-space")
    again = await hand.poll(processed=0, wait=0)
    assert again["failures"] == [failure]  # until it is acknowledged
    assert (await hand.poll(wait=0))["failures"] == []


def test_the_oldest_of_a_lossy_key_goes_and_a_large_message_passes() -> None:
    key = live_key("k", "lossy", 3)
    mailbox = box(key, mailbox_bytes=5000)
    for number in range(10):
        mailbox.offer(key, b"%d" % number, "c")
    assert bodies(mailbox) == [
        b'"dropped":7', b'"message":7,"cursor":"c"', b'"message":8,"cursor":"c"', b'"message":9,"cursor":"c"',
    ]  # fmt: skip
    mailbox.acknowledge(4)
    mailbox.offer(key, b'"' + b"x" * 10_000 + b'"', "c")  # more than the mailbox holds
    assert [len(body) > 10_000 for body in bodies(mailbox)] == [True]


def test_the_mailbox_is_bounded_over_all_keys() -> None:
    lossy = [live_key(f"l{n}", "lossy") for n in range(3)]
    critical = live_key("c")
    mailbox = box(*lossy, critical, mailbox_bytes=10_000)
    for _ in range(100):
        for key in lossy:
            assert mailbox.offer(key, b'"' + b"x" * 100 + b'"', "c")
    assert mailbox.bytes <= 10_000 + 600  # a message is taken as long as there is some room
    assert not mailbox.offer(critical, b"1", "c")  # it falls back, and loses nothing
    sent = mailbox.take()
    told = sum(int(one.body[len(b'"dropped":') :]) for one in sent if one.body.startswith(b'"dropped"'))
    assert told + sum(one.body.startswith(b'"message"') for one in sent) == 300
    assert told == mailbox.dropped > 0


@pytest.mark.parametrize(
    ("commands", "named"),
    [
        ([{"command": 1, "subscribe": "k", "filter": "a/#", "policy": "any"}], "policy"),
        ([{"command": 1, "subscribe": "k", "filter": "a/#/b"}], "a/#/b"),
        ([{"command": 1, "subscribe": "k"}], "filter"),
        ([{"command": 1, "publish": "k"}], "publish"),
    ],
)
async def test_an_unknown_kind_of_subscription_is_refused(desk: Desk, commands: Any, named: str) -> None:
    answer = await desk.hand().post_commands(commands)
    assert answer.status == 400 and named in answer.json()["detail"]


def test_an_answer_has_so_many_bytes() -> None:
    key = live_key()
    mailbox = box(key, answer_bytes=3000)
    for number in range(10):
        mailbox.offer(key, b'"%d' % number + b"x" * 1000 + b'"', "c")
    sizes = []
    while sent := mailbox.take():
        sizes.append(len(sent))
        mailbox.acknowledge(sent[-1].sequence)
    assert sum(sizes) == 10 and max(sizes) <= 3


async def test_answers_are_split_by_size(start_desk: StartDesk) -> None:
    desk = await start_desk(answer_bytes=5000)
    hand = desk.hand()
    await hand.subscribe("k", "a/#", since="earliest")
    await desk.publish("a/1", *("x" * 2000 for _ in range(9)))
    counts = []
    while sum(counts) < 9:
        counts.append(len((await hand.poll())["messages"]))
    assert max(counts) <= 3
