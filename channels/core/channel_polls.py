"""What all channels are asked in one way: polls, and the numbers of commands. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError

from streamlease.protocol.errors import InvalidInput, StreamleaseError

MOST_NUMBER = (1 << 53) - 1
"""Of a command, and of a sequence: JSON of JavaScript has no greater ones."""

LONGEST_KEY = 512
LONGEST_CLIENT = 200
CommandNumber = Annotated[StrictInt, Field(ge=1, le=MOST_NUMBER)]
Key = Annotated[StrictStr, Field(min_length=1, max_length=LONGEST_KEY)]


class ChannelPoll(BaseModel):
    """A poll, and what the client is done with."""

    model_config = ConfigDict(extra="forbid")

    gateway: Annotated[StrictStr, Field(max_length=100)] | None = None
    """That of the last answer; null at first."""
    processed: Annotated[StrictInt, Field(ge=0, le=MOST_NUMBER)] = 0
    """The highest sequence that the client is done with."""
    wait: Annotated[float, Field(ge=0, le=60, strict=True, allow_inf_nan=False)] = 0.0


class RefusedCommand(InvalidInput):
    """Nothing of a batch was done, because of one command."""

    def __init__(self, why: StreamleaseError, command: int, key: str) -> None:
        super().__init__(f"command {command}, key {ascii(key)[:80]}: {why}; nothing of the batch was done")
        self.why = why
        self.command = command
        self.key = key


def parse_poll(body: bytes) -> ChannelPoll:
    """A poll.

    Raises:
        InvalidInput: the body is none.
    """
    try:
        return ChannelPoll.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise malformed(
            'a poll, {"gateway": ID or null, "processed": SEQUENCE, "wait": SECONDS}', error
        ) from None


def check_numbers(commands: Iterable[int]) -> None:
    """The numbers of a batch rise.

    Raises:
        InvalidInput: one does not.
    """
    before = 0
    for number in commands:
        if number <= before:
            raise InvalidInput(
                f"command {number} stands behind command {before}: number them upwards, each once"
            )
        before = number


def check_client(name: str) -> str:
    """The name that a client gives itself.

    Raises:
        InvalidInput: it is none.
    """
    if not 1 <= len(name) <= LONGEST_CLIENT or "/" in name:
        raise InvalidInput(
            f"the client is {ascii(name)[:80]}: "
            f"give it a name of 1 to {LONGEST_CLIENT} characters without a slash"
        )
    return name


def malformed(what: str, error: ValidationError) -> InvalidInput:
    """The first thing that is wrong with a body, with its value."""
    first: Any = error.errors(include_url=False, include_input=True)[0]
    where = ".".join(map(str, first["loc"])) or "the body"
    shown = ascii(first.get("input"))[:80]
    said = " ".join(first["msg"].split())
    return InvalidInput(f"the body is not {what}: {ascii(where)[:80]} is {shown}: {said}")
