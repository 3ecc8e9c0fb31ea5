"""What a spawn job may ask of the host that takes it: a closed union, one class for each kind. Pure.

A job travels through RQ as JSON that names its kind and its arguments: ``[KIND, null, [ARGUMENT, ...], {}]``.
`KINDS` is the one table of names; nothing else is ever looked up by a name that came from Redis. A new kind
is a class here, a member of `SpawnJob`, and a line of `KINDS`; mypy then names the ``match`` in which hosts
do it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from streamlease.protocol.errors import InvalidTopic
from streamlease.protocol.ids import HIGHEST_TOLD
from streamlease.protocol.topics import SharedSubscription


class JobRefused(Exception):
    """A job is not a spawn job. One line: what is wrong with it."""


@dataclass(frozen=True, slots=True)
class LeadGroup:
    """Stand for the leadership of a group, under a term above one that was seen."""

    kind: ClassVar[str] = "streamlease.lead"
    id_prefix: ClassVar[str] = "streamlease-leader-"
    """How the ids of these jobs begin."""

    group: str
    above: int

    @property
    def arguments(self) -> tuple[str, int]:
        """As they stand in a job."""
        return self.group, self.above

    @classmethod
    def read(cls, arguments: list[object]) -> LeadGroup:
        """The job with these arguments.

        Raises:
            JobRefused: they are not a group and a term.
        """
        match arguments:
            case [str(group), int(above)] if not isinstance(above, bool):
                pass
            case _:
                raise JobRefused("its data is not a call with a group and a term")
        try:
            if SharedSubscription.parse(f"$shared/{group}").id != group or not 0 <= above <= HIGHEST_TOLD:
                raise JobRefused(f"there is no group {ascii(group)[:80]} with a term above {above}")
        except InvalidTopic as error:
            raise JobRefused(str(error)) from None
        return cls(group, above)

    def __str__(self) -> str:
        return f"lead {self.group}"


SpawnJob = LeadGroup
"""All that a host may be asked to run."""

KINDS: Mapping[str, type[SpawnJob]] = MappingProxyType({one.kind: one for one in (LeadGroup,)})


def spawn_job(call: object) -> SpawnJob:
    """The job that a call, as JSON has it, stands for.

    Raises:
        JobRefused: it is of no known kind, or not in its form.
    """
    match call:
        case [str(kind), None, [*arguments], {**rest}] if not rest:
            known = KINDS.get(kind)
            if known is None:
                raise JobRefused(f"it calls {ascii(kind)[:80]}")
            return known.read(arguments)
        case _:
            raise JobRefused("its data is not a call by kind and arguments")
