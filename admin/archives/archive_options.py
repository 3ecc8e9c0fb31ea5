"""The options of ``streamlease space create|alter`` that give a space an archive."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.quantities import parse_duration, parse_size

if TYPE_CHECKING:
    from streamlease.streams.spaces.archive_settings import ArchiveSettings
    from streamlease.streams.spaces.spaces import Space

Archive = Annotated[
    str | None,
    typer.Option(
        metavar="URI",
        help="Keep older messages in an Apache Iceberg table here: a folder, s3://BUCKET/... or "
        "gs://BUCKET/.... The place is tried at once.",
    ),
]
KeepInMemory = Annotated[
    str | None,
    typer.Option(
        metavar="AGE|SIZE",
        help="What is older than this, such as 1h, or exceeds this in the whole space, such as 1GiB, leaves "
        "the memory of Redis once it is in the archive; 'all' keeps what retention keeps.",
    ),
]
ArchiveCatalog = Annotated[
    str | None,
    typer.Option(
        metavar="URI",
        help="The Iceberg catalog of the table, such as https://... for a REST catalog. A folder has one of "
        "its own.",
    ),
]


def keep_in_memory(text: str | None) -> tuple[int | None, int | None]:
    """An age in milliseconds, or a size in bytes.

    Raises:
        InvalidOption: it is neither.
    """
    if text is None or text == "all":
        return None, None
    try:
        return parse_duration("--keep-in-memory", text), None
    except InvalidOption:
        pass
    try:
        return None, parse_size("--keep-in-memory", text)
    except InvalidOption:
        raise InvalidOption(
            f"--keep-in-memory {ascii(text)[:80]} is neither an age, such as 1h, nor a size, such as 1GiB"
        ) from None


def archive_settings(
    uri: str | None, keep: str | None, catalog: str | None, before: ArchiveSettings | None = None
) -> ArchiveSettings | None:
    """What the options say; one that is left out stays as it was.

    Raises:
        InvalidOption: a value is not acceptable, or there is no archive for them.
    """
    if uri is None and keep is None and catalog is None:
        return before
    from streamlease.streams.spaces.archive_settings import ArchiveSettings

    place = uri if uri is not None else before.uri if before is not None else None
    if place is None:
        raise InvalidOption(
            "--keep-in-memory and --archive-catalog are for an archive: give --archive URI too"
        )
    ages = keep_in_memory(keep)
    if keep is None and before is not None:
        ages = before.keep_ms, before.keep_bytes
    known = catalog if catalog is not None else before.catalog if before is not None else ""
    return ArchiveSettings.of(place, known, *ages)


@dataclass(frozen=True, slots=True)
class ArchiveChange:
    """What is asked about the archive of a space that exists; None for what is not given."""

    uri: str | None
    keep: str | None
    catalog: str | None

    @property
    def anything(self) -> bool:
        """Whether any of them is given."""
        return any(one is not None for one in astuple(self))

    def of(self, space: Space) -> ArchiveSettings | None:
        """The archive that the space is to have."""
        return archive_settings(self.uri, self.keep, self.catalog, space.archive)
