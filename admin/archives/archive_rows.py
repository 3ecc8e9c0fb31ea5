"""What the commands about archives print with ``--json``."""

from __future__ import annotations

from streamlease.admin.facts.rows import Count, FactRow, StreamName


class ArchivedStream(FactRow):
    stream: StreamName
    first: Count
    """The lowest offset that is in a file."""
    next: Count
    """What is below it is in files."""
    bytes: Count


class ArchivedFileRow(FactRow):
    path: str
    stream: StreamName
    first: Count
    next: Count


class ArchiveShown(FactRow):
    space: str
    uri: str
    table: str
    streams: list[ArchivedStream]
    files: list[ArchivedFileRow]


class ArchiveRun(FactRow):
    space: str
    messages: Count
    files: Count
    bytes: Count
    streams: list[StreamName]
    healed: Count
    """Files that were in the table or recorded, and are both now."""
    troubles: dict[StreamName, str]
    """Streams that cannot be archived further, and why."""


class WrongRow(FactRow):
    stream: StreamName
    first: Count
    next: Count
    path: str | None
    """null: no file has these offsets."""
    why: str


class ArchiveVerified(FactRow):
    space: str
    files: Count
    messages: Count
    bytes: Count
    wrong: list[WrongRow]


class ArchiveCompacted(FactRow):
    space: str
    files: Count
    """How many were replaced."""
    into: Count
    snapshots: Count
    """How many were let go."""
    swept: Count
    """Files that nothing named any more."""
