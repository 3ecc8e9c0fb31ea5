"""Where the older messages of a space go, and how much of it stays in memory."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from streamlease.protocol.errors import SpaceConflict
from streamlease.protocol.quantities import MOST, format_duration, format_size
from streamlease.streams.archive.files.places import checked_address
from streamlease.streams.spaces.settings import Settings


class ArchiveSettings(Settings):
    """The archive of one space.

    Raises:
        InvalidOption: a value is not acceptable.
    """

    what = "archive"

    uri: str
    """In its one form; see ``checked_address``."""
    catalog: str = ""
    """The address of the catalog that the table is in; empty: one that comes with the place."""
    keep_ms: int | None = None
    keep_bytes: int | None = None
    """Of the whole space. What is older, or more, leaves the memory; None: as long as retention keeps it."""

    def __init__(
        self, uri: str, catalog: str = "", keep_ms: int | None = None, keep_bytes: int | None = None
    ) -> None:
        self._set(uri=uri, catalog=catalog, keep_ms=keep_ms, keep_bytes=keep_bytes)

    @classmethod
    def of(
        cls, uri: str, catalog: str = "", keep_ms: int | None = None, keep_bytes: int | None = None
    ) -> ArchiveSettings:
        """Settings with a checked address."""
        return cls(checked_address(uri), catalog, keep_ms, keep_bytes)

    def at(self, uri: str) -> ArchiveSettings:
        """The same somewhere else.

        Raises:
            InvalidOption: it is no address.
        """
        return ArchiveSettings.of(uri, self.catalog, self.keep_ms, self.keep_bytes)

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        for name in ("keep_ms", "keep_bytes"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MOST:
                raise ValueError(f"{name} is {value}, it must be at least 1")
        return self

    def __str__(self) -> str:
        parts = []
        if self.keep_ms is not None:
            parts.append(format_duration(self.keep_ms))
        if self.keep_bytes is not None:
            parts.append(format_size(self.keep_bytes))
        return f"{self.uri}, with {' and '.join(parts) or 'all that retention keeps'} in memory"


def check_same_archive(name: str, existing: ArchiveSettings | None, wanted: ArchiveSettings | None) -> None:
    """Whether a space that exists has the archive that is wanted; none is wanted: it may have any.

    Raises:
        SpaceConflict: it has another one.
    """
    if wanted is not None and wanted != existing:
        raise SpaceConflict(
            f"space {name} exists {f'with the archive {existing}' if existing else 'without an archive'}: "
            f"use it as it is, or change it: streamlease space alter {name} --archive ..."
        )


def check_moves(
    name: str, existing: ArchiveSettings | None, wanted: ArchiveSettings, *, has_files: bool
) -> None:
    """Whether a space may have its archive somewhere else.

    Raises:
        SpaceConflict: it has files where it is.
    """
    if existing is not None and has_files:
        raise SpaceConflict(
            f"space {name} has files in its archive at {existing.uri}, which cannot move to {wanted.uri}: "
            f"create another space there"
        )
