"""Every error that Streamlease raises on purpose.

::

    StreamleaseError
    +-- InvalidInput            a value from outside is not acceptable (also a ValueError)
    |   +-- InvalidTopic        a topic name or topic filter is malformed
    |   +-- InvalidOption       an option or setting is unknown or out of range
    |   +-- MessageTooLarge     one message is larger than a stream entry may be
    |   +-- InvalidEpoch        an epoch or a frontier is malformed, or has other dimensions
    +-- UnknownSpace            no topic space has that name, or covers that topic or filter
    +-- SpaceConflict           the space exists with another definition, or its topics overlap another's
    +-- UnknownGroup            nobody ever declared that shared subscription
    +-- GroupConflict           the shared subscription is declared otherwise
    +-- ActRefused              the leader will not do what an operator wants, and says why
    +-- Halted                  nothing more is handed out until an operator says so (``spark.core.targets``)
    +-- NotCapable              a publisher has given up the epoch that it wants
    +-- StreamSealed            the stream takes no more messages: its generation was closed
    |   +-- SpaceEnded          the whole space takes no more (``streams.imports.transfer``)
    +-- HistoryTruncated        retention already removed what was asked for
    |   +-- MissingOffsets      acknowledged messages are not there: Redis lost them (``streams.log.ranges``)
    |       +-- PartsLost       they were staged, for an epoch (``streams.epochs.boundary_reading``)
    +-- Lost                    a file of an archive is missing, or was altered
    +-- EpochsTruncated         retention already removed the boundaries between epochs that were asked for
    +-- EpochsLost              Redis lost boundaries that were read (``streams.epochs.boundary_reading``)
    +-- SchemaMismatch          the data is not of the schema that the space or the reader has
    +-- Fenced                  somebody with a higher fencing token took over; this one must stop
    |   +-- OutOfSequence       two publishers use one id, or Redis lost writes (``streams.log.appends``)
    |   +-- ProgressMoved       another run of the same source appended meanwhile (``streams.log.appends``)
    |   +-- TrimFenced          another host does retention now (``streams.spaces.retention``)
    +-- NotLeader               the process asked does not lead that shared subscription
    +-- TailLost                Redis lost the end of a journal, which its leader heals (``leader.journal``)
    +-- Unsupported             the server or a library is too old or wrongly configured
    +-- StoreUnavailable        Redis does not answer; nothing was done (retriable)
    |   +-- ArchiveUnavailable  the store of an archive does not answer, is full, or refuses
    |       +-- ArchiveMoved    somebody else changed the table meanwhile (``streams.archive.recording``)
    +-- StoreRefused            Redis answered with an error, such as OOM; nothing was done (retriable)
    |   +-- StreamPending       the space is being altered; it takes messages soon (``streams.log.appends``)
    +-- NotDurable              written, but not as durably as the space demands; it may still exist
    +-- Indefinite              no answer came after sending: it was done, or it was not
    +-- NoService               nobody serves that name (retriable)
    +-- ServiceBusy             whoever serves it has too much to do; nothing was done (retriable)
    +-- ServiceConflict         others serve that name with other types
    +-- TypeMismatch            what a caller writes, the server does not read, or the other way round
    +-- ServiceError            the handler of a service raised it
    +-- UnknownQuery            nobody submitted a query of that id, or it is forgotten
    +-- NoExecutor              no executor has room for the workers of a job, or fits (retriable)
    +-- QueryRefused            an order, a token or a file of a query is not what was signed
    +-- SpawningAborted         a query never ran: not all of its workers have joined
    +-- BrokerRefused           an MQTT broker will not do what is needed (``gateway.mqtt.broker_errors``)
    +-- BrokerUnavailable       it does not answer, or ended the connection (retriable; there, too)
    +-- GatewayRefused, GatewayUnavailable, GatewayGarbled, WebhookRefused   (``http.core.gateway_errors``)
    +-- TaskFailed              a task of this process ended by a defect, and what it did with it

Each message is one line: what is wrong, with which value, and what to do. ``retriable`` says whether
the same call may succeed later without a change. ``Indefinite`` is neither success nor failure and is
never folded into one of them (invariant 12 of the design).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Self


class StreamleaseError(Exception):
    """Base of all errors of this package. ``str(error)`` is one line for a person."""

    retriable = False

    def __str__(self) -> str:
        return " ".join(super().__str__().splitlines())  # the value that is wrong may be a table, say


class InvalidInput(StreamleaseError, ValueError):
    """A value from outside is not acceptable."""


class InvalidTopic(InvalidInput):
    """A topic name or a topic filter breaks the grammar of MQTT 5, section 4.7."""


class InvalidOption(InvalidInput):
    """An option or a setting is unknown, out of range, or contradicts another one."""


class MessageTooLarge(InvalidInput):
    """One message is larger than a stream entry may be."""


class InvalidEpoch(InvalidInput):
    """An epoch or a frontier is malformed, out of range, or has other dimensions than its space."""


class UnknownSpace(StreamleaseError):
    """No topic space has that name, or covers that topic or filter."""


class SpaceConflict(StreamleaseError):
    """A space of that name exists with another definition, or its topics overlap another space's."""


class TopicNotFound(StreamleaseError):
    """Nobody publishes to the topic."""

    retriable = True


class UnknownGroup(StreamleaseError):
    """Nobody ever declared that shared subscription."""


class GroupConflict(StreamleaseError):
    """The shared subscription exists with another definition."""


class ActRefused(StreamleaseError):
    """The leader will not do what an operator wants; nothing was changed. The refusal is in the history."""


class Halted(StreamleaseError):
    """The group is paused, or a stream is stopped at a message that failed: an operator decides."""


class StreamSealed(StreamleaseError):
    """The stream takes no more messages, because its generation was closed."""


class HistoryTruncated(StreamleaseError):
    """Retention already removed what was asked for."""

    def __init__(self, stream: str, asked: int | datetime, oldest: int, remedy: str = "") -> None:
        self.stream = stream
        self.asked = asked
        """The offset, or the moment after which all was wanted."""
        self.oldest = oldest
        self.remedy = remedy or self._usual_remedy()
        super().__init__(f"{self._loss()}: {self.remedy}")

    def __reduce__(self) -> tuple[type[Self], tuple[str, int | datetime, int, str]]:
        return (type(self), (self.stream, self.asked, self.oldest, self.remedy))

    def with_remedy(self, remedy: str) -> Self:
        """The same loss, met by somebody who can do something else about it."""
        return type(self)(self.stream, self.asked, self.oldest, remedy)

    def _loss(self) -> str:
        asked = self.asked
        what = f"offset {asked}" if isinstance(asked, int) else f"all messages since {asked.isoformat()}"
        return f"stream {self.stream} no longer has {what}; the oldest left is {self.oldest}"

    def _usual_remedy(self) -> str:
        return "start from 'earliest' or from an offset that is still there"


class Lost(StreamleaseError):
    """A file of an archive is missing, or is not what was written. `file` is its name."""

    def __init__(self, file: str, stream: str, first: int, next: int, why: str) -> None:
        self.file, self.stream, self.first, self.next, self.why = file, stream, first, next, why
        super().__init__(f"{self.what}: restore it from a backup, or start from offset {next}")

    @property
    def what(self) -> str:
        """What is wrong, without a remedy."""
        return (
            f"the file {self.file} of the archive {self.why}, and with it offsets {self.first} to "
            f"{self.next - 1} of stream {self.stream}"
        )

    def __reduce__(self) -> tuple[type[Self], tuple[str, str, int, int, str]]:
        return (type(self), (self.file, self.stream, self.first, self.next, self.why))


class EpochsTruncated(StreamleaseError):
    """Retention already removed the boundaries that were asked for, and with them what lies between them."""


class CatalogTruncated(StreamleaseError):
    """What changed of a collection of the catalog behind a cursor is not kept any more, or Redis lost it."""

    def __init__(self, collection: str, remedy: str = "begin without a cursor") -> None:
        self.collection = collection
        self.remedy = remedy
        super().__init__(
            f"what changed of {collection} behind this cursor is not kept any more, or Redis lost it: "
            f"{remedy}"
        )

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        return (type(self), (self.collection, self.remedy))


class SchemaMismatch(StreamleaseError):
    """The data is not of the schema that the space or the reader has."""


class NotCapable(StreamleaseError):
    """An epoch publisher has given up the epoch that it wants, or never held it."""


class Fenced(StreamleaseError):
    """A higher fencing token exists; whoever holds this one must stop."""


class NotLeader(StreamleaseError):
    """The process that was asked does not lead that shared subscription."""

    retriable = True


class Unsupported(StreamleaseError):
    """The Redis server or a library is too old, or configured in a way that loses data."""


class StoreUnavailable(StreamleaseError):
    """Redis does not answer; nothing was done."""

    retriable = True


class ArchiveUnavailable(StoreUnavailable):
    """The store with the files of an archive cannot be read or written now; what it has stands."""


class StoreRefused(StreamleaseError):
    """Redis answered with an error; nothing was done."""

    retriable = True


class NotDurable(StreamleaseError):
    """The write happened, but less durably than the space demands. It may still exist.

    `stream` and `offset` say where, if known. The same call again would write it twice.
    """

    def __init__(self, message: str, stream: str | None = None, offset: int | None = None) -> None:
        super().__init__(message)
        self.stream = stream
        self.offset = offset


class Indefinite(StreamleaseError):
    """No answer came after the request was sent: it may have been done, or not."""

    retriable = True


class NoService(StreamleaseError):
    """Nobody serves that name; nothing was done."""

    retriable = True


class ServiceBusy(StreamleaseError):
    """All who serve that name have as many requests as they take; nothing was done."""

    retriable = True


class ServiceConflict(StreamleaseError):
    """Others serve that name, with types that do not agree with these."""


class TypeMismatch(StreamleaseError):
    """The types of caller and server do not agree; the handler did not run, unless the text says so."""


class ServiceError(StreamleaseError):
    """The error of a handler of a service. The handler raises it, and the caller gets it.

    Args:
        message: one line for people.
        error: a pydantic model, for programs; of the type that `serve` was told in `errors`. It is None for a
            caller that did not name its type.
    """

    def __init__(self, message: str, error: Any = None) -> None:
        super().__init__(message)
        self.error = error
        self.kind = "ServiceError"
        """The class of what the handler raised."""


class UnknownQuery(StreamleaseError):
    """Nobody submitted a query of that id, or it ended long ago and is forgotten."""


class NoExecutor(StreamleaseError):
    """No executor fits a job, or none of those that do has room for it; nothing was done."""

    retriable = True


class QueryRefused(StreamleaseError):
    """An order, a token or a file of a query is not what was signed; nothing was run."""


class SpawningAborted(StreamleaseError):
    """A query never ran: not all of its workers have joined. All of them are ended."""


class TaskFailed(StreamleaseError):
    """A task of this process ended by a defect, its cause; what the task did is not done any more."""
