"""What needs attention, worst first, and rates from counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamlease.admin.doctor.held_epochs import HeldEpochs
from streamlease.admin.facts.hosts import Host
from streamlease.admin.ui.attention import concerns
from streamlease.admin.ui.board_rows import Concern, GroupOnPage, SpaceOnPage
from streamlease.admin.ui.message_rates import PAUSE, STEP, MessageRates
from streamlease.admin.ui.slow_facts import HostChanges, SlowFacts, SlowLooks
from streamlease.agent.client import connect
from streamlease.protocol.topics import SharedSubscription
from streamlease.queries import store
from streamlease.queries.core.record import QueryOutcome, QueryRecord, QueryStage
from streamlease.queries.store import Write
from streamlease.registry import keys
from streamlease.streams.spaces.definitions import Generation, Space


def group(name: str, **values: Any) -> GroupOnPage:
    row: dict[str, Any] = {
        "subscription": name, "leader": "h", "term": 1, "streams": 4, "held": 4, "borrowers": 1, "moves": 0,
        "lag": 5, "lag_seconds": 0.5, "rate": 1.0, "state": "consuming", "spaces": [], "paused_since": None,
        "paused_by": None, "stopped": [], "dead_letters": 0, "expired": False,
    }  # fmt: skip
    return GroupOnPage(**{**row, **values})


def space(name: str, **values: Any) -> SpaceOnPage:
    row = {"messages": 0, "bytes": 0, "held_by": [], "held_since": None, "rate": 0.0, "lost": 0, **values}
    epochs = row.pop("epochs", 0)
    return SpaceOnPage.of(
        Space(
            name=name, topics=(f"{name}/#",), epochs=epochs, generations=(Generation(number=0, streams=1),)
        ),
        **row,
    )


def told(
    groups: Sequence[GroupOnPage] = (),
    spaces: Sequence[SpaceOnPage] = (),
    hosts: Sequence[Host] = (),
    now: int = 0,
    **more: Any,
) -> list[Concern]:
    """The concerns, with nothing but what is given."""
    return concerns(groups, spaces, hosts, now, **{"slow": SlowFacts(), "client_led": {}, "gone": {}} | more)


def test_the_worst_comes_first_and_what_is_well_is_not_named() -> None:
    groups = [
        group("well"),
        group("late", state="behind", lag_seconds=7200.0, lag=9),
        group("paused", state="paused", paused_by="ana", paused_since=1_000, lag=1),
        group("alone", state="no consumers", lag=70),
        group("leaderless", state="no leader", lag=80),
        group("unknown", lag=None, lag_seconds=None),
        group("stopped", state="stopped", stopped=["a.0.1"]),
        group("empty", state="no leader", lag=0),
    ]
    found = told(groups, now=601_000)
    assert [one.subscription for one in found] == [
        "stopped", "unknown", "leaderless", "alone", "paused", "late",
    ]  # fmt: skip
    said = {one.subscription: (one.level, one.acts, one.text) for one in found}
    assert said["stopped"] == (
        "bad", ["retry", "dead_letter"], "stream a.0.1 is stopped at a message that failed too often",
    )  # fmt: skip
    assert found[0].about == {"stream": "a.0.1"}
    assert said["paused"] == ("warn", ["resume"], "ana paused it 10 min ago, and 1 message waits")
    assert said["alone"][1] == said["leaderless"][1] == ["pause", "expire"]
    assert (said["late"][1], found[-1].tab) == (["rebalance"], "why")
    assert said["late"][2] == "its oldest message has waited for 2 h, and 9 messages wait"


def host(name: str, *, drained: bool = False) -> Host:
    return Host(host=name, name=name.partition("-")[0], pid=1, leaders=0, drained=drained)


def test_hosts_that_are_all_drained_or_gone_are_a_concern() -> None:
    drained = [host("a", drained=True), host("b", drained=True)]
    assert [(one.acts, one.host) for one in told(hosts=drained)] == [(["undrain_host"], "a")]
    assert told(hosts=[host("a"), drained[1]]) == []
    (gone,) = told(hosts=[host("a")], gone={"b": 0}, now=120_000)
    assert (gone.host, gone.text) == ("b", "this leader host is gone; it was last seen 2 min ago")


def test_without_a_host_epochs_and_archives_stand_still() -> None:
    assert told(spaces=[space("plain")]) == []
    (found,) = told(spaces=[space("plain"), space("clicks", epochs=1)])
    assert (found.level, found.text) == (
        "bad",
        "No leader host is there, and no epochs complete, nor is anything archived, of clicks: "
        "run 'streamlease serve'",
    )
    assert told(spaces=[space("clicks", epochs=1)], hosts=[host("a")]) == []
    led = group("g", leader="embedded-7", lag=0, lag_seconds=None)
    assert told([led], spaces=[space("clicks", epochs=1)]) == [], "the client that leads does it"


def test_what_holds_messages_back_can_be_expired_if_it_is_a_group() -> None:
    held = {"held_by": ["$shared/g/a", "webhook 7"], "held_since": 1_000_000}
    (found,) = told([group("$shared/g/a")], [space("s", **held)], now=7_201_000)
    assert (found.acts, found.about) == (["expire"], {"subscription": "$shared/g/a"})
    assert found.text == "for 2 h, $shared/g/a and 1 more has kept messages that retention would remove"
    (found,) = told(spaces=[space("s", held_by=["webhook 7"], held_since=1_000_000)], now=7_201_000)
    assert found.acts == []


def test_epochs_held_back_queries_that_failed_and_dead_letters() -> None:
    record = QueryRecord(
        query="00000000000000ab", name="delays", state=QueryStage.ENDED, size=1, submitted_at=1,
        outcome=QueryOutcome.FAILED, reason="worker 0 exited with 3",
    )  # fmt: skip
    slow = SlowFacts(
        [
            HeldEpochs("clicks", "the frontier has stood at 4 for 70 s, held by ana", "give it up", "ana"),
            HeldEpochs("dead", "it has no keeper", "run a leader host", None),
        ],
        [record],
        {"g": 2},
    )
    found = {one.query or one.space or one.subscription: one for one in told([group("g")], slow=slow)}
    assert [*found] == ["dead", "00000000000000ab", "clicks", "g"]
    assert found["clicks"].acts == ["abort_publisher"]
    assert found["clicks"].about == {"space": "clicks", "publisher": "ana"}
    assert found["dead"].text == "it has no keeper: run a leader host"
    assert found["00000000000000ab"].text == "delays failed: worker 0 exited with 3"
    assert (found["g"].acts, found["g"].text) == (
        ["replay"], "2 messages failed too often, and nobody replayed them",
    )  # fmt: skip


def test_a_group_that_a_client_leads_beside_hosts_is_one_after_a_while() -> None:
    changes, groups = HostChanges(), [group("g", leader="embedded-7"), group("h", leader="a")]
    assert changes.led_by_clients(groups, [], 0) == {}
    assert changes.led_by_clients(groups, [host("a")], 1_000) == {}
    assert changes.led_by_clients(groups, [host("a", drained=True)], 2_000) == {}
    assert changes.led_by_clients(groups, [host("a")], 3_000) == {}
    assert changes.led_by_clients(groups, [host("a")], 32_999) == {}
    led = changes.led_by_clients(groups, [host("a")], 33_000)
    assert led == {"g": "embedded-7"}
    (found,) = told([groups[0]], hosts=[host("a")], client_led=led)
    assert (found.acts, found.text) == (
        ["step_down"], "the client embedded-7 leads it, although there are leader hosts",
    )  # fmt: skip


def test_a_host_is_gone_until_its_successor_comes_or_time_passes() -> None:
    changes = HostChanges()
    one, other = host("a-1"), host("b-1")
    assert changes.gone([one, other], 0) == {}
    assert changes.gone([one], 5_000) == {"b-1": 0}
    assert changes.gone([one, host("b-2")], 6_000) == {}
    assert changes.gone([one], 7_000) == {"b-2": 6_000}
    assert changes.gone([one], 606_000) == {}
    assert changes.gone([one, host("c-1", drained=True)], 607_000) == {}
    assert changes.gone([one], 608_000) == {}, "it was drained first"


async def test_slow_facts_are_read_as_they_stand(embedded_redis_url: str) -> None:
    async with connect(embedded_redis_url, embedded=False) as client:
        space = await client.create_space("clicks", ["clicks/#"], epochs=1)
        shared = SharedSubscription.parse("$shared/g/clicks/#")
        now = await store.redis_ms(client.redis)
        records = [
            QueryRecord(
                query=f"{number:016x}", name=str(outcome), state=QueryStage.ENDED, size=1,
                submitted_at=now, outcome=outcome, ended_at=ended, next=next,
            )
            for number, (outcome, ended, next) in enumerate(
                [
                    (QueryOutcome.DONE, now, None), (QueryOutcome.FAILED, now, None),
                    (QueryOutcome.LOST, now, "00000000000000ff"), (QueryOutcome.LOST, now - 90_000_000, None),
                ]
            )
        ]  # fmt: skip
        await store.write(client.redis, [Write(0, record) for record in records])
        redis: Any = client.redis
        await redis.hset(keys.replayed(shared.id), "clicks.0.0@1", "{}")
        looks = SlowLooks(client)
        found = await looks.read([space], {shared: 3})
        assert [one.name for one in found.failed] == ["failed"]
        assert found.letters == {str(shared): 2}
        assert (await looks.read([], {})).letters == {}


def test_rates_are_of_the_last_seconds_and_begin_anew_after_a_pause() -> None:
    rates = MessageRates()
    assert rates.take(0.0, {"a": 100}) == {"a": None}
    for second in range(1, 8):
        last = rates.take(float(second), {"a": 100 + 10 * second, "b": None})
    assert last == {"a": 10.0, "b": None}
    assert rates.take(8.0, {"a": 170}) == {"a": 8.0}, "over five seconds"
    assert rates.series("a")[0] is None
    assert len(rates.series("a")) == 8 // STEP + 1
    assert rates.take(9.0, {"a": 3}) == {"a": None}, "it began anew"
    assert rates.take(9.0 + PAUSE + 1, {"a": 900}) == {"a": None}, "nobody looked meanwhile"
    assert rates.take(30.0, {}) == {}
    assert rates.series("a") == []
