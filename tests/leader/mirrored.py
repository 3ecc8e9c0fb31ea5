"""What stands beside a journal, in a form that reads well in tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streamlease.leader.core.parts.mirror import Beside, MirrorChange, lease_text


@dataclass(frozen=True, slots=True)
class Held:
    """How far a stream is, and who may commit it."""

    committed: int
    lease: str
    asked: bool = True
    """Whether the leader must know if more is committed."""


def leased(committed: int, lease_epoch: int, reset_by: int = 0) -> Held:
    return Held(committed, lease_text(lease_epoch, True, reset_by))


def free(committed: int, lease_epoch: int, reset_by: int = 0) -> Held:
    return Held(committed, lease_text(lease_epoch, False, reset_by), asked=False)


def change(streams: Mapping[str, Held], *, whole: bool = False) -> MirrorChange:
    """What is to be written of these streams."""
    parts = []
    for asked in (True, False):
        those = {name: one for name, one in streams.items() if one.asked is asked}
        rows = [(name, one.committed, one.lease) for name, one in those.items()]
        parts.append(Beside(*zip(*rows, strict=True)) if rows else Beside())
    return MirrorChange(asked=parts[0], others=parts[1], whole=whole)


def held(change: MirrorChange) -> dict[str, Held]:
    """The streams of a change."""
    found = {}
    for asked, part in ((True, change.asked), (False, change.others)):
        for name, committed, lease in zip(part.names, part.committed, part.leases, strict=True):
            found[name] = Held(committed, lease, asked)
    return found
