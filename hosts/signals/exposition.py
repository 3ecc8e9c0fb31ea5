"""What a leader host tells Prometheus.

Series of groups carry the group's name, never a stream's: a host with 500 groups has a few thousand lines,
however many streams they have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from streamlease.hosts.signals.group_signals import GroupSignals
from streamlease.leader.metrics import LedFacts


@dataclass(frozen=True, slots=True)
class KeptFacts:
    """One space with epochs that the host keeps, at one moment."""

    space: str
    publishers: int
    held_back: int
    """Publishers that are ahead of the lower frontier, and wait for others there."""
    waiting: int
    """Messages that were given up, and that are not complete."""
    frontier_seconds: float
    """For how long the lower frontier has been where it is."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """A host at one moment."""

    led: Sequence[LedFacts]
    draining: bool
    waiting: int
    """Messages of the host that are not on their way yet."""
    dropped: int
    """Messages that did not parse."""
    kept: Sequence[KeptFacts] = ()
    declared: Sequence[GroupSignals] | None = None
    """All declared groups; None: another host tells of them, or they are not known."""


class _HostCollector(Collector):
    def __init__(self, facts: HostFacts) -> None:
        self._facts = facts

    def collect(self) -> Iterator[Metric]:
        facts = self._facts
        yield GaugeMetricFamily("streamlease_leaders", "Leaders of this host.", value=len(facts.led))
        yield GaugeMetricFamily("streamlease_draining", "1 while the host drains.", value=int(facts.draining))
        yield GaugeMetricFamily("streamlease_outbox_messages", "Messages not yet sent.", value=facts.waiting)
        yield GaugeMetricFamily(
            "streamlease_dropped_messages",
            "Messages that were no messages, since the start.",
            value=facts.dropped,
        )
        if facts.declared is not None:
            yield GaugeMetricFamily("streamlease_groups", "Declared groups.", value=len(facts.declared))
        for name, field, meaning in _OF_KEPT_SPACES:
            family = GaugeMetricFamily(f"streamlease_epochs_{name}", meaning, labels=["space"])
            for space in facts.kept:
                family.add_metric([space.space], getattr(space, field))
            yield family


def _of_groups(facts: HostFacts) -> Iterator[str]:
    """The lines of all groups. There are thousands, and the library would take some 5 us for each."""
    for families, groups in ((_OF_LED, facts.led), (_OF_DECLARED, facts.declared)):
        if groups is None:
            continue
        labels = [f'{{subscription="{_escaped(group.subscription)}"}}' for group in groups]
        for name, field, meaning in families:
            yield from _head(f"streamlease_group_{name}", meaning)
            for label, group in zip(labels, groups, strict=True):
                value = getattr(group, field)
                if value is not None:  # unknown is absent, never 0
                    yield f"streamlease_group_{name}{label} {float(value)!r}\n"
    if facts.declared is not None:
        yield from _head("streamlease_group_state", "1 for the state of the group.")
        for group in facts.declared:
            name = _escaped(group.subscription)
            yield f'streamlease_group_state{{subscription="{name}",state="{group.state}"}} 1.0\n'


def _head(name: str, meaning: str) -> tuple[str, str]:
    return f"# HELP {name} {meaning}\n", f"# TYPE {name} gauge\n"


def _escaped(label: str) -> str:
    """As the text format wants the value of a label."""
    return label.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


_OF_LED = (
    ("term", "term", "Term of the group's leader."),
    ("moves", "moves", "How often a stream went from one session to another, in the life of the group."),
    ("rebalances", "rebalances", "Plans that gave or took streams, since the leader's term began."),
    ("mailbox_messages", "inbox", "Messages that wait for the leader."),
    (
        "turn_seconds",
        "turn_seconds",
        "For how long the leader has been at what it does now; 0 while it waits for messages.",
    ),
)

_OF_DECLARED = (
    ("borrowers", "borrowers", "Borrowers of processes that live."),
    ("streams", "streams", "Streams of the group that are not consumed to their end."),
    ("held_streams", "held", "Streams that somebody holds of a leader that lives."),
    ("committed_messages", "committed", "Sum of the offsets below which all is consumed."),
    ("lag_messages", "lag", "Messages not consumed yet; absent while unknown."),
    (
        "lag_seconds",
        "lag_seconds",
        "Age of the oldest message that waits, at least; absent while unknown.",
    ),
)

_OF_KEPT_SPACES = (
    ("frontier_seconds", "frontier_seconds", "For how long the lower frontier has been where it is."),
    ("publishers", "publishers", "Publishers that are there."),
    ("held_back_publishers", "held_back", "Publishers that are ahead of the lower frontier: others hold it."),
    ("waiting_messages", "waiting", "Messages that were given up, and whose epochs others hold open."),
)


def exposition(facts: HostFacts) -> bytes:
    """Everything in the text format of Prometheus: the host, its groups, and what this process counts."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_HostCollector(facts))
    groups = "".join(_of_groups(facts)).encode()
    return generate_latest(registry) + groups + generate_latest(REGISTRY)
