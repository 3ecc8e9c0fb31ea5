"""Reading again what a commit wrote about files, before the table points there.

A store that took half of a manifest and said that all is well would leave a table that nobody can read. The
files with messages are proven when they are written (``files/file_writing.py``).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from streamlease.protocol.errors import ArchiveUnavailable

TOTAL = "total-data-files"


def prove_snapshot(metadata: Any, io: Any, new: Collection[str]) -> None:
    """Read the newest snapshot again: its list, and the manifests that it added.

    Args:
        metadata: of the table, as it is about to be committed.
        new: the files that it must have.

    Raises:
        ArchiveUnavailable: the store has something else.
        OSError: it does not say.
    """
    snapshot = metadata.current_snapshot()
    if snapshot is None:
        raise not_as_written(metadata.location)
    try:
        manifests = snapshot.manifests(io)
        found: set[str] = set()
        for manifest in manifests:
            if manifest.added_snapshot_id == snapshot.snapshot_id:
                entries = manifest.fetch_manifest_entry(io, discard_deleted=True)
                if len(entries) != _files_of(manifest):
                    raise not_as_written(manifest.manifest_path)
                found.update(entry.data_file.file_path for entry in entries)
    except (OSError, ArchiveUnavailable):
        raise
    except Exception as error:  # what the reader of a damaged file raises has no common root
        raise not_as_written(f"{snapshot.manifest_list}, or a manifest") from error
    if str(sum(map(_files_of, manifests))) != snapshot.summary[TOTAL] or not found.issuperset(new):
        raise not_as_written(snapshot.manifest_list)


def not_as_written(path: str) -> ArchiveUnavailable:
    """What is told of a file of the table that the store has altered."""
    return ArchiveUnavailable(
        f"the store does not have the file {path} as it was written: nothing was committed, and it is tried "
        f"again"
    )


def _files_of(manifest: Any) -> int:
    return int((manifest.added_files_count or 0) + (manifest.existing_files_count or 0))
