"""How a group behaves, as it was declared: its plans, its time to hand over, and what becomes of poison.

Pure data, known to whoever declares a group and to its leader.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.topics import check_topic

OnPoison = Literal["dead-letter", "stop"]
ON_POISON: tuple[OnPoison, ...] = ("dead-letter", "stop")

DEAD = "$dead"
"""The first level of the topics of dead letters, unless a group says otherwise."""

MAX_FAILURES = 100
MAX_RETRY_DELAY_MS = 3_600_000
MAX_REVOCATION_MS = 86_400_000
_STRATEGY = re.compile(r"[a-z][a-z0-9_-]{0,62}\Z")


class GroupOptions(BaseModel):
    """Options of one group, as declared; a leader keeps those that hold when its term begins.

    Raises:
        InvalidOption: a value is of another kind. Whether all fit together, `check_options` says.
    """

    def __init__(
        self,
        *,
        strategy: str | None = None,
        revocation_timeout_ms: int | None = None,
        on_poison: OnPoison = "dead-letter",
        max_failures: int = 5,
        retry_delay_ms: int = 500,
        max_retry_delay_ms: int = 60_000,
        dead_letters: str | None = None,
    ) -> None:
        try:
            super().__init__(
                strategy=strategy,
                revocation_timeout_ms=revocation_timeout_ms,
                on_poison=on_poison,
                max_failures=max_failures,
                retry_delay_ms=retry_delay_ms,
                max_retry_delay_ms=max_retry_delay_ms,
                dead_letters=dead_letters,
            )
        except ValidationError as error:
            first = error.errors()[0]
            raise InvalidOption(
                f"{first['loc'][0]} is {ascii(first['input'])[:80]}: {first['msg'][:100]}"
            ) from None

    model_config = ConfigDict(frozen=True, extra="forbid")

    strategy: str | None = None
    """Name of the assignment strategy; None: that of the leader host (`count`)."""
    revocation_timeout_ms: int | None = None
    """How long a borrower may take to give a stream back before it is taken by force under a new lease epoch,
    also out of an open cut; None: that of the leader host (30 s), and open cuts are waited for as long as
    their sessions live."""
    on_poison: OnPoison = "dead-letter"
    """What becomes of a message that failed `max_failures` times: it goes to the dead letters, or its stream
    stops until an operator decides."""
    max_failures: int = 5
    """How often one message may fail, whoever tries it."""
    retry_delay_ms: int = 500
    """How long its stream waits before a message that failed is tried again; twice as long after each further
    failure of it. 0: it comes again at once."""
    max_retry_delay_ms: int = 60_000
    """But never longer than this."""
    dead_letters: str | None = None
    """The topic below which the dead letters stand; None: ``$dead/GROUP``."""

    def retry_delay(self, failures: int) -> int:
        """How long (ms) a message that failed so often waits before it is tried again."""
        return min(self.max_retry_delay_ms, self.retry_delay_ms << max(0, failures - 1))

    def topic_of(self, group: str, topic: str) -> str:
        """The topic of a dead letter of `group` (a group's name) that was published to `topic`."""
        return f"{self.prefix_of(group)}/{topic}"

    def prefix_of(self, group: str) -> str:
        """The topic below which the dead letters of `group` stand."""
        return self.dead_letters or f"{DEAD}/{group}"


def _readable(given: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    try:
        return validate(given)
    except (InvalidOption, TypeError) as error:  # of its __init__, which pydantic calls
        raise ValueError(str(error)) from None


KeptOptions = Annotated[GroupOptions, WrapValidator(_readable)]
"""Options as a field of a model that is read from what was written."""


def check_options(options: GroupOptions) -> GroupOptions:
    """`options`, if a group may be declared with them.

    Raises:
        InvalidOption: a value is out of range.
        InvalidTopic: the topic of the dead letters is malformed.
    """
    if not isinstance(options, GroupOptions):
        raise InvalidOption(f"options is {ascii(options)[:80]}: give streamlease.GroupOptions(...)")
    if options.strategy is not None and not _STRATEGY.match(options.strategy):
        raise InvalidOption(
            f"strategy {ascii(options.strategy)[:80]} is not a name: use lower-case letters, digits, '_', '-'"
        )
    timeout = options.revocation_timeout_ms
    if timeout is not None and not 100 <= timeout <= MAX_REVOCATION_MS:
        raise InvalidOption(f"the revocation timeout is {timeout} ms: give 100 to {MAX_REVOCATION_MS} ms")
    if not 1 <= options.max_failures <= MAX_FAILURES:
        raise InvalidOption(f"max_failures is {options.max_failures}: give 1 to {MAX_FAILURES}")
    if not 0 <= options.retry_delay_ms <= options.max_retry_delay_ms <= MAX_RETRY_DELAY_MS:
        raise InvalidOption(
            f"a failed message is tried again after {options.retry_delay_ms} ms at first and "
            f"{options.max_retry_delay_ms} ms at most: give 0 to {MAX_RETRY_DELAY_MS} ms, "
            f"the first not above the second"
        )
    if options.dead_letters is not None:
        check_topic(options.dead_letters)
    return options
