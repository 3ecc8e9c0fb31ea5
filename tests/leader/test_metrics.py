"""What a host tells Prometheus is what is so; what is unknown is absent."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from streamlease.hosts.signals.exposition import HostFacts, exposition
from streamlease.hosts.signals.group_signals import GroupSignals
from streamlease.leader.core.state.records import HandedOver, Leased
from streamlease.leader.metrics import LedFacts, count_commit

SUB = "$shared/g/a/#"


LED = LedFacts(SUB, term=3, moves=4, rebalances=2, inbox=0, turn_seconds=7.5)
DECLARED = GroupSignals(SUB, "led", borrowers=1, streams=2, held=1, committed=5, lag=7)


def samples(facts: HostFacts) -> dict[tuple[str, str], float]:
    """By name and subscription."""
    families = text_string_to_metric_families(exposition(facts).decode())
    return {
        (one.name, one.labels.get("subscription", "")): one.value
        for family in families
        for one in family.samples
    }


def test_groups_and_the_host_are_told_and_the_unknown_is_left_out() -> None:
    seen = samples(HostFacts([LED], True, 2, 1, (), [DECLARED]))
    assert seen["streamlease_leaders", ""] == 1
    assert (seen["streamlease_draining", ""], seen["streamlease_outbox_messages", ""]) == (1, 2)
    assert seen["streamlease_groups", ""] == 1
    of_leader = {"term": 3, "moves": 4, "rebalances": 2, "mailbox_messages": 0, "turn_seconds": 7.5}
    of_all = {
        "borrowers": 1,
        "streams": 2,
        "held_streams": 1,
        "committed_messages": 5,
        "lag_messages": 7,
        "state": 1,
    }
    assert told(seen) == of_leader | of_all


def test_a_host_that_does_not_tell_of_all_groups_tells_what_only_the_leader_knows() -> None:
    seen = samples(HostFacts([LED], False, 0, 0))
    assert set(told(seen)) == {"term", "moves", "rebalances", "mailbox_messages", "turn_seconds"}
    assert ("streamlease_groups", "") not in seen


def told(seen: dict[tuple[str, str], float]) -> dict[str, float]:
    """What is said of the group. Consumers of earlier tests told of themselves in the same registry."""
    prefix = "streamlease_group_"
    return {
        name.removeprefix(prefix): value
        for (name, subscription), value in seen.items()
        if subscription == SUB and name.startswith(prefix)
    }


def test_a_commit_counts_what_it_holds() -> None:
    def value(name: str, **labels: str) -> float:
        return REGISTRY.get_sample_value(name, labels) or 0.0

    before = [
        value("streamlease_leases_total"),
        value("streamlease_journal_bytes_total"),
        value("streamlease_hand_over_seconds_sum", how="take-over"),
    ]
    count_commit(
        [
            Leased(stream="a.0.0", lease_epoch=1, name="n", session="s"),
            HandedOver(stream="a.0.0", milliseconds=1500, clean=False),
        ],
        120,
    )
    after = [
        value("streamlease_leases_total"),
        value("streamlease_journal_bytes_total"),
        value("streamlease_hand_over_seconds_sum", how="take-over"),
    ]
    assert [now - then for now, then in zip(after, before, strict=True)] == pytest.approx([1, 120, 1.5])


@pytest.mark.parametrize(
    "name", ['$shared/g/a "b"/#', "$shared/g/a\\b/#", "$shared/g/a\\n/#", "$shared/g/ä/€"]
)
def test_names_of_groups_come_through_as_they_are(name: str) -> None:
    group = GroupSignals(name, "paused", borrowers=0, lag=2**53, lag_seconds=1e-7)
    families = text_string_to_metric_families(exposition(HostFacts([], False, 0, 0, (), [group])).decode())
    found = {
        one.name: one
        for family in families
        for one in family.samples
        if one.labels.get("subscription") == name
    }
    assert found["streamlease_group_state"].labels == {"subscription": name, "state": "paused"}
    assert found["streamlease_group_lag_messages"].value == 2**53
    assert found["streamlease_group_lag_seconds"].value == 1e-7
