"""Leader hosts on a real Redis: they lead, hand over, take over, and say when they do not lead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

import pytest

from streamlease.hosts.candidates import Place
from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.leader.core.events import Received
from streamlease.leader.core.machine import LeaderConfig
from streamlease.leader.core.state.records import Leased, Record, StreamsAdded
from streamlease.leader.journal import Journal, recover
from streamlease.leader.runner import Runner
from streamlease.protocol.acts import DescribeGroup
from streamlease.protocol.cuts import Ranges
from streamlease.protocol.errors import StoreRefused
from streamlease.protocol.ids import HIGHEST_TOLD, MOST_NUMBER
from streamlease.protocol.messages import (
    Command,
    CommandAstray,
    FixCut,
    Grant,
    Invalidate,
    LeaderConnectResponse,
    Message,
    NotLeader,
    Progress,
    SpawnWanted,
    UpdateProgress,
)
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import hosts, keys, leadership
from streamlease.registry.commits import GroupCommits, StreamCommit
from streamlease.registry.groups import Groups
from streamlease.registry.leadership import Candidacy, LeaderRecord, LeadershipConfig
from streamlease.registry.mail import mailbox
from streamlease.registry.mail.mailbox import Mailbox
from streamlease.streams.redis.connection import AsyncRedis, ask, connect
from streamlease.streams.spaces.spaces import SpaceStore
from streamlease.streams.tasks import stop
from tests.leader.make import finish, finished, goodbye, part, ping, progress, wanted
from tests.leader.mirrored import change, leased

SUBSCRIPTION = SharedSubscription.parse("$shared/g/a")
GROUP = SUBSCRIPTION.id
QUICK = LeadershipConfig(ttl=1500, renew_interval=300)
_Kind = TypeVar("_Kind")


@pytest.fixture
async def redis(embedded_redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(embedded_redis_url)
    await SpaceStore(client).create("a", ["a/#"], streams=2)
    await Groups(client).declare(SUBSCRIPTION, "earliest")
    yield client
    await client.aclose()


@asynccontextmanager
async def hosting(
    redis: AsyncRedis, name: str, place: Place | None = None, **more: object
) -> AsyncIterator[LeaderHost]:
    config = HostConfig(name=name, leadership=QUICK, **more)  # type: ignore[arg-type]
    host = LeaderHost(redis, config, place=place)
    await host.start()
    try:
        yield host
    finally:
        await host.close()


class Client:
    """A mailbox that speaks as borrowers."""

    def __init__(self, redis: AsyncRedis) -> None:
        self.redis = redis
        self.box = Mailbox(redis, "client")
        self.got: list[Message] = []

    async def say(self, host: str, *messages: Message) -> None:
        gone = await mailbox.send(self.redis, "client", [(host, message) for message in messages])
        assert not gone

    async def hear(self, kind: type[_Kind]) -> _Kind:
        """The next message of that kind; the others are kept."""
        while True:
            for message in self.got:
                if isinstance(message, kind):
                    self.got.remove(message)
                    return message
            self.got += [letter.message for letter in await self.box.receive()]


@pytest.fixture
async def client(redis: AsyncRedis) -> AsyncIterator[Client]:
    client = Client(redis)
    await client.box.open()
    yield client
    await client.box.close()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Look again and again; the test's own timeout ends it."""
    while not await condition():  # noqa: ASYNC110 - the condition is in Redis, which tells nobody
        await asyncio.sleep(0.01)


async def leads(redis: AsyncRedis, host: LeaderHost, term: int) -> None:
    async def so() -> bool:
        record = await leadership.read(redis, GROUP)
        return (record.host, record.term) == (host.id, term) and host.leaders == [GROUP]

    await until(so)


async def connected(client: Client, host: LeaderHost, borrower: str = "b1", attempt: int = 1) -> None:
    await client.say(host.id, wanted(borrower, name="n", session="s", attempt=attempt))
    assert (await client.hear(LeaderConnectResponse)).borrower == borrower


async def test_a_host_claims_and_answers_its_borrowers(redis: AsyncRedis, client: Client) -> None:
    async with hosting(redis, "one") as host:
        host.lead(GROUP)
        host.lead(GROUP)  # asked twice, one leader
        await leads(redis, host, 1)
        await connected(client, host)
        granted = [await client.hear(Grant) for _ in range(2)]
        assert {(grant.stream, grant.lease_epoch, grant.progress) for grant in granted} == {
            ("a.0.0", 1, 0),
            ("a.0.1", 1, 0),
        }
        state = (await recover(redis, GROUP)).state
        assert {held.owner for held in state.streams.values()} == {"n"}, "granted before it was durable"


async def test_who_is_asked_for_a_leader_makes_a_job_that_any_host_may_take(
    redis: AsyncRedis, client: Client
) -> None:
    jobs: list[tuple[str, int, int]] = []
    made = asyncio.Event()

    async def place(group: str, record: LeaderRecord, above: int) -> bool:
        jobs.append((group, record.term, above))
        made.set()
        return True

    async with hosting(redis, "one", place) as host:
        await client.say(host.id, SpawnWanted(group=GROUP, above=3))
        await made.wait()
        assert (jobs, host.leaders, list(host._candidates)) == ([(GROUP, 0, 3)], [], [])
        await client.say(host.id, SpawnWanted(group=GROUP, placed=True))
        await leads(redis, host, 1)
        assert len(jobs) == 1


async def test_a_host_that_can_make_no_job_leads_what_it_is_asked_for(
    redis: AsyncRedis, client: Client
) -> None:
    async def place(group: str, record: LeaderRecord, above: int) -> bool:
        raise StoreRefused("Redis does not let this user do that")

    async with hosting(redis, "one", place) as host:
        await client.say(host.id, SpawnWanted(group=GROUP))
        await leads(redis, host, 1)
        assert (host.leaders, host.failure) == ([GROUP], None)


async def test_a_drained_host_resigns_and_invalidates(redis: AsyncRedis, client: Client) -> None:
    async with hosting(redis, "one") as host:
        host.lead(GROUP)
        await leads(redis, host, 1)
        await connected(client, host)
        await host.drain(10)
        assert (await client.hear(Invalidate)).reason == "stepped_down"
        record = await leadership.read(redis, GROUP)
        assert (record.held, record.term) == (False, 1)
        assert await hosts.alive(redis) == []
        host.lead(GROUP)
        assert host.leaders == []


async def test_after_a_drain_another_host_leads_at_once(redis: AsyncRedis, client: Client) -> None:
    async with hosting(redis, "one") as one, hosting(redis, "two") as two:
        one.lead(GROUP)
        await leads(redis, one, 1)
        await one.drain(10)
        two.lead(GROUP)
        await leads(redis, two, 2)
        await connected(client, two)
        assert (one.leaders, two.leaders) == ([], [GROUP])


@pytest.mark.slow
async def test_when_a_host_dies_another_takes_over_and_the_borrower_resumes(
    redis: AsyncRedis, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        one = LeaderHost(redis, HostConfig(name="one", leadership=QUICK))
        await one.start()
        two = await stack.enter_async_context(hosting(redis, "two"))
        one.lead(GROUP)
        await leads(redis, one, 1)
        await connected(client, one)
        for _ in range(2):
            grant = await client.hear(Grant)
            entry = Progress(stream=grant.stream, lease_epoch=1, offset=0)
            await client.say(one.id, UpdateProgress(group=GROUP, borrower="b1", progress=(entry,)))

        with monkeypatch.context() as dead:

            async def no_resignation(*_: object) -> bool:
                return False

            dead.setattr(leadership, "resign", no_resignation)
            await stop([*one._tasks, *one._leading.values()])
        died = await leadership.read(redis, GROUP)
        assert died.host == one.id

        two.lead(GROUP)
        await leads(redis, two, 2)
        took_over = await leadership.read(redis, GROUP)
        assert QUICK.ttl <= took_over.renewed_at - died.renewed_at
        await client.say(two.id, ping("b1"))
        assert (await client.hear(Invalidate)).reason == "unknown"
        await connected(client, two, "b2", attempt=2)
        resumed = [await client.hear(Grant) for _ in range(2)]
        assert {(grant.term, grant.lease_epoch, grant.resumes) for grant in resumed} == {(2, 2, 1)}


@pytest.mark.slow
async def test_a_dead_hosts_groups_are_shared_by_the_others_when_their_ttl_is_over(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asks for a leader: the hosts notice by themselves."""
    groups = [SharedSubscription.parse(f"$shared/g{number}/a") for number in range(12)]
    for shared in groups:
        await Groups(redis).declare(shared, "earliest")
    async with hosting(redis, "one") as one:
        for shared in groups:
            one.lead(shared.id)

        async def leads_all() -> bool:
            return len(one.leaders) == len(groups)

        await until(leads_all)
        with monkeypatch.context() as dead:

            async def no_resignation(*_: object) -> bool:
                return False

            dead.setattr(leadership, "resign", no_resignation)
            await stop([*one._tasks, *one._leading.values()])
        died = await leadership.read_all(redis, [shared.id for shared in groups])
        async with hosting(redis, "two") as two, hosting(redis, "three") as three:

            async def all_followed() -> bool:
                return len(two.leaders) + len(three.leaders) == len(groups)

            await until(all_followed)
            assert set(two.leaders) | set(three.leaders) == {shared.id for shared in groups}
            assert two.leaders and three.leaders, "one of them took all"
            after = await leadership.read_all(redis, [shared.id for shared in groups])
            for group, new in after.items():
                assert new.term == 2
                assert new.renewed_at - died[group].renewed_at >= QUICK.ttl


@pytest.mark.slow
async def test_hosts_leave_a_live_leader_alone(redis: AsyncRedis) -> None:
    async with hosting(redis, "one") as one, hosting(redis, "two") as two:
        one.lead(GROUP)
        await leads(redis, one, 1)
        seen = set()

        async def renewed_four_times() -> bool:
            seen.add((await leadership.read(redis, GROUP)).renewed_at)
            return len(seen) > 4

        await until(renewed_four_times)
        assert (one.leaders, two.leaders) == ([GROUP], [])


async def test_two_hosts_that_want_the_same_group_do_not_both_lead(redis: AsyncRedis) -> None:
    async with hosting(redis, "one") as one, hosting(redis, "two") as two:
        for host in (one, two):
            host.lead(GROUP)

        async def settled() -> bool:
            return len(one.leaders) + len(two.leaders) == 1

        await until(settled)
        record = await leadership.read(redis, GROUP)
        assert record.term == 1
        assert record.host in (one.id, two.id)
        assert (one if record.host == one.id else two).leaders == [GROUP]


@pytest.mark.parametrize(
    "message",
    [wanted("b9"), ping("b9"), progress("b9", "a.0.0", 1, 1), finished("b9", "a.0.0", 1)],
    ids=lambda message: message.type,
)
async def test_a_host_without_the_group_answers_not_leader(
    redis: AsyncRedis, client: Client, message: Message
) -> None:
    async with hosting(redis, "one") as host:
        await client.say(host.id, message)
        answer = await client.hear(NotLeader)
        assert (answer.group, answer.borrower) == (GROUP, "b9")


async def test_a_host_without_the_group_refuses_an_operator_and_ignores_the_rest(
    redis: AsyncRedis, client: Client
) -> None:
    async with hosting(redis, "one") as host:
        cut = FixCut(
            group=GROUP,
            session="s",
            arrival=1,
            cut=1,
            finished=0,
            ranges=Ranges.of((part("a.0.0", 1, 0, 1),)),
        )
        question = Command(group=GROUP, request="r7", act=DescribeGroup())
        await client.say(host.id, goodbye("b9"), cut, finish("s", 1), question)
        assert await client.hear(CommandAstray) == CommandAstray(group=GROUP, request="r7")
        assert client.got == []


@pytest.mark.parametrize(
    "letter",
    [
        b"garbage",
        b"[" * 100_000,
        b'[null, 1, {}, [], {"type": "ping"}]',
        b'[{"type": "ping", "group": "g/a", "borrower": "b", "term": 9007199254740993}]',
        b'[{"type": "spawn_wanted", "group": "g/a", "above": 9223372036854775807}]',
        b'[{"type": "spawn_wanted", "group": "g/a", "above": 9007199254740991, "placed": true}]',
    ],
)
async def test_what_a_stranger_puts_into_a_mailbox_costs_a_group_nothing(
    redis: AsyncRedis, client: Client, letter: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A term from which none can rise would end the group for good."""
    async with hosting(redis, "one") as host:
        await ask(redis, [("XADD", keys.mailbox(host.id), "*", "x", "y")])
        await ask(redis, [("XADD", keys.mailbox(host.id), "*", "f", b"\xff", "m", letter)])
        await client.say(host.id, SpawnWanted(group=GROUP, placed=True))
        await leads(redis, host, 1)
        await connected(client, host)
        assert host.dropped >= 1
        assert "from '\\ufffd' cannot be read, and are left out: is that a process of another" in caplog.text


async def test_the_highest_term_that_is_believed_leaves_room_to_rise(redis: AsyncRedis) -> None:
    async with hosting(redis, "one") as host:
        host.lead(GROUP, HIGHEST_TOLD)
        await until(lambda: _leads_above(redis, host, HIGHEST_TOLD))
        (term,) = [runner.term for runner in host._runners.values()]
    async with hosting(redis, "two") as host:
        host.lead(GROUP, HIGHEST_TOLD)
        await leads(redis, host, term + 1)
        assert [runner.term for runner in host._runners.values()] == [term + 1]
        assert HIGHEST_TOLD < term < MOST_NUMBER


async def _leads_above(redis: AsyncRedis, host: LeaderHost, term: int) -> bool:
    record = await leadership.read(redis, GROUP)
    return record.host == host.id and record.term > term and host.leaders == [GROUP]


async def test_a_group_that_was_never_declared_gets_no_leader_and_no_record(redis: AsyncRedis) -> None:
    async with hosting(redis, "one") as host:
        host.lead("nobody/declared", above=3)
        assert list(host._candidates) == ["nobody/declared"]

        async def over() -> bool:
            return not list(host._candidates)

        await until(over)
        assert host.leaders == []
        assert await leadership.read(redis, "nobody/declared") == leadership.NOBODY


async def test_a_host_that_redis_has_deposed_ends_its_leader(redis: AsyncRedis, client: Client) -> None:
    async with hosting(redis, "one") as host:
        host.lead(GROUP)
        await leads(redis, host, 1)
        await leadership.resign(redis, GROUP, host.id, 1)
        usurper = Candidacy(GROUP, "usurper", "box", QUICK)
        usurper.observe(await leadership.read(redis, GROUP), 0)
        assert await usurper.attempt(redis) == 2

        async def ended() -> bool:
            return host.leaders == []

        await until(ended)
        record = await leadership.read(redis, GROUP)
        assert (record.host, record.term) == ("usurper", 2)


async def of_the_term_before(redis: AsyncRedis) -> None:
    """Both streams are leased to a borrower that comes back, and its leader is no more."""
    candidacy = Candidacy(GROUP, "h", "h", QUICK)
    candidacy.observe(await leadership.read(redis, GROUP), 0)
    assert await candidacy.attempt(redis) == 1
    journal = Journal(redis, GROUP, "h", 1, b"0-0")
    before: list[Record] = [
        StreamsAdded(starts={"a.0.0": 0, "a.0.1": 0}),
        Leased(stream="a.0.0", lease_epoch=1, name="n", session="s"),
        Leased(stream="a.0.1", lease_epoch=1, name="n", session="s"),
    ]
    streams = change({"a.0.0": leased(0, 1), "a.0.1": leased(0, 1)})
    await journal.write(journal.next_commit(before, streams))


async def granted(redis: AsyncRedis) -> list[Grant]:
    """What a leader that begins grants to that borrower, whose request waits in the runner's inbox."""
    sent: list[Message] = []
    enough = asyncio.Event()

    def outbox(_: str, message: Message) -> None:
        sent.append(message)
        if sum(isinstance(one, Grant) for one in sent) == 2:
            enough.set()

    runner = Runner(redis, GROUP, "h", 1, outbox, LeaderConfig(), QUICK)
    runner.post(Received("box", wanted("b1", name="n", session="s")))
    task = asyncio.create_task(runner.run())
    waiting = asyncio.create_task(enough.wait())
    await asyncio.wait([waiting, task], timeout=10, return_when=asyncio.FIRST_COMPLETED)
    runner.step_down()
    assert await task == "drained"
    waiting.cancel()
    assert enough.is_set(), "the borrower was accepted, but its streams were never granted"
    return [message for message in sent if isinstance(message, Grant)]


async def test_a_borrower_that_is_faster_than_recovery_gets_its_streams_back(redis: AsyncRedis) -> None:
    """The leader must know the journal before it takes the request."""
    await of_the_term_before(redis)
    assert {(grant.lease_epoch, grant.resumes) for grant in await granted(redis)} == {(2, 1)}


async def test_a_stream_is_granted_from_where_its_owner_had_committed_it(redis: AsyncRedis) -> None:
    """Of which no leader had heard."""
    await of_the_term_before(redis)
    assert await GroupCommits(redis, GROUP).write([StreamCommit("a.0.1", 1, 6)]) == [True]
    found = {grant.stream: grant.progress for grant in await granted(redis)}
    assert found == {"a.0.0": 0, "a.0.1": 6}


async def test_what_was_committed_while_nobody_led_is_recorded_though_nobody_comes(redis: AsyncRedis) -> None:
    await of_the_term_before(redis)
    assert await GroupCommits(redis, GROUP).write([StreamCommit("a.0.1", 1, 6)]) == [True]
    runner = Runner(redis, GROUP, "h", 1, lambda *_: None, LeaderConfig(), QUICK)
    task = asyncio.create_task(runner.run())

    async def recorded() -> bool:
        return (await recover(redis, GROUP)).state.streams["a.0.1"].committed == 6

    await until(recorded)
    runner.step_down()
    assert await task == "drained"
