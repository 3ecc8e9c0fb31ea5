"""Operators' acts: what a leader may be asked to do with its group, a closed union.

An act is made at the edge (`made`, or `parse` where its name is only known then), travels in a `Command`, and
is matched by its type from there on.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from streamlease.protocol.cuts import Offset, Text
from streamlease.protocol.errors import InvalidOption


def _no_truth(given: object) -> object:
    if isinstance(given, bool):
        raise ValueError("give a whole number")
    return given


Number = Annotated[Offset, BeforeValidator(_no_truth)]
"""For Python, True is 1."""


class _Act(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DescribeGroup(_Act):
    """Say what there is; nothing is changed, nor kept."""

    act: Literal["describe"] = "describe"


class RebalanceGroup(_Act):
    """Make a plan now, and take back what was moved by hand."""

    act: Literal["rebalance"] = "rebalance"


class StepDown(_Act):
    """Let another leader begin the next term."""

    act: Literal["step_down"] = "step_down"


class PauseGroup(_Act):
    """Ask all streams back, and grant none."""

    act: Literal["pause"] = "pause"
    until: Number | None = None
    """When the group resumes by itself, in milliseconds since 1970."""


class ResumeGroup(_Act):
    """End a pause."""

    act: Literal["resume"] = "resume"


class DrainBorrower(_Act):
    """Take a borrower's streams from it, and grant it none."""

    act: Literal["drain"] = "drain"
    borrower: Text
    """Name or id."""


class UndrainBorrower(_Act):
    """Let a borrower have streams again."""

    act: Literal["undrain"] = "undrain"
    borrower: Text
    """Name or id."""


class MoveStream(_Act):
    """Let a stream go to a borrower, and stay there."""

    act: Literal["move"] = "move"
    stream: Text
    borrower: Text
    """Name or id."""


class ReleaseStream(_Act):
    """Take a stream from its owner at once, and give it to another."""

    act: Literal["release"] = "release"
    stream: Text


class RetryMessage(_Act):
    """Try the message at which a stream is stopped anew."""

    act: Literal["retry"] = "retry"
    stream: Text


class PutDeadLetter(_Act):
    """Put the message at which a stream is stopped among the dead letters."""

    act: Literal["dead_letter"] = "dead_letter"
    stream: Text


class ResetProgress(_Act):
    """Let streams go on from other offsets."""

    act: Literal["reset"] = "reset"
    offsets: dict[Text, Number] = Field(default_factory=dict)
    """Where each stream goes on; a reset that names none is refused."""


class ExpireGroup(_Act):
    """Let a group without consumers hold no data."""

    act: Literal["expire"] = "expire"


class DeleteGroup(_Act):
    """End the group, its leader and its borrowers; who asks for it removes then what is kept of it."""

    act: Literal["delete"] = "delete"
    force: bool = False
    """Also if borrowers are connected; their sessions end."""


StoppedAct = RetryMessage | PutDeadLetter
"""What may be decided about a stream that is stopped at a message."""

LastingAct = (
    RebalanceGroup
    | StepDown
    | PauseGroup
    | ResumeGroup
    | DrainBorrower
    | UndrainBorrower
    | MoveStream
    | ReleaseStream
    | StoppedAct
    | ResetProgress
    | ExpireGroup
    | DeleteGroup
)
"""What is decided, recorded, and done once."""

LastingName = Literal[
    "rebalance",
    "step_down",
    "pause",
    "resume",
    "drain",
    "undrain",
    "move",
    "release",
    "retry",
    "dead_letter",
    "reset",
    "expire",
    "delete",
]
"""The names of lasting acts."""

Act = LastingAct | DescribeGroup
ActField = Annotated[Act, Field(discriminator="act")]

KINDS: dict[str, type[_Act]] = {kind.model_fields["act"].default: kind for kind in get_args(Act)}
"""Kinds of acts by name."""

A = TypeVar("A", bound=BaseModel)


def made(kind: type[A], /, **fields: Any) -> A:
    """An act of that kind.

    Raises:
        InvalidOption: a field is none, or not acceptable.
    """
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise unacceptable(error) from None


def unacceptable(error: ValidationError) -> InvalidOption:
    """What is wrong with the first field that is not acceptable, in one line."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return InvalidOption(f"{ascii(where)[1:-1][:80]} is missing: the act needs it")
    return InvalidOption(
        f"{ascii(where)[1:-1][:80]} is {ascii(first.get('input'))[:80]}: {first['msg'][:200]}"
    )


def parse(name: str, /, **fields: Any) -> Act:
    """The act of that name.

    Raises:
        InvalidOption: there is none, or a field is none or not acceptable.
    """
    kind = KINDS.get(name)
    if kind is None:
        raise InvalidOption(f"act is {ascii(name)[:80]}: use one of {', '.join(KINDS)}")
    act: Any = made(kind, **fields)
    return act  # type: ignore[no-any-return]
