"""What happens inside one part of a leader and concerns others: facts, which `couplings` hands on."""

from __future__ import annotations

from dataclasses import dataclass

from streamlease.leader.core.peer import Peer
from streamlease.leader.core.planning.planner import Plan
from streamlease.leader.core.state.outcomes import Outcome


@dataclass(frozen=True, slots=True)
class Connected:
    """A borrower was accepted; `before` had its name until now."""

    peer: Peer
    before: Peer | None


@dataclass(frozen=True, slots=True)
class Overdue:
    """A borrower did not give a stream back in time."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class BorrowerLost:
    """A borrower is gone. `clean`: it said so itself."""

    peer: Peer
    clean: bool


@dataclass(frozen=True, slots=True)
class Freed:
    """These streams are nobody's, because their owner is lost or an operator took them."""

    streams: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GivenBack:
    """The owner of a stream has forgotten it, as it was asked to."""

    stream: str


@dataclass(frozen=True, slots=True)
class TakenByForce:
    """An operator took a stream from its owner: another one is to have it."""

    stream: str
    owner: Peer


@dataclass(frozen=True, slots=True)
class GrantsAnswered:
    """The new owner of these streams has spoken of them for the first time."""

    streams: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Passed:
    """More of these streams is consumed than before."""

    streams: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Advanced:
    """These streams are finished, or others may be read now."""

    finished: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leaving:
    """These streams are consumed to their end, but still held."""

    streams: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gone:
    """These streams do not exist any more."""

    streams: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SituationChanged:
    """There are other streams to be had than before."""


@dataclass(frozen=True, slots=True)
class FailureStops:
    """A message failed too often, and its stream is stopped there."""

    stream: str


@dataclass(frozen=True, slots=True)
class DeadLetterStands:
    """The message at which a stream stood is durably a dead letter; `failure` is its newest failure."""

    stream: str
    offset: int
    failure: str


@dataclass(frozen=True, slots=True)
class PlanDue:
    """A plan is to be made now."""


@dataclass(frozen=True, slots=True)
class RoomToAsk:
    """Of what was asked back much has come back, and some was not asked for yet."""


@dataclass(frozen=True, slots=True)
class Planned:
    """This plan is to be carried out."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Done:
    """An operator's act is done: its record is made."""

    outcome: Outcome


Happening = (
    Connected
    | Overdue
    | BorrowerLost
    | Freed
    | GivenBack
    | TakenByForce
    | GrantsAnswered
    | Passed
    | Advanced
    | Leaving
    | Gone
    | SituationChanged
    | FailureStops
    | DeadLetterStands
    | PlanDue
    | RoomToAsk
    | Planned
    | Done
)
