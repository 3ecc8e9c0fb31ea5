"""Writing a file that is not there, of which one of several writers at most is told that it did.

In a folder, the file is written under another name and linked. A bucket has nothing like that, and its client
here no conditional write. But whoever has written a file finds it in the next listing. So each writer first
puts a *claim* beside the place, then lists the claims, then looks for the file::

    claim --> list: another claim? refuse --> the file? it is theirs --> write it --> remove the claim

Of two writers at once, the one whose claim came later sees the claim of the other, or the file. Both may see
each other, and be refused. A claim that a dead writer left is passed over when it is old, by the store's
clock; a writer that needs nearly so long gives up.
"""

from __future__ import annotations

import os
import time
import uuid

from streamlease.protocol.errors import ArchiveUnavailable
from streamlease.streams.archive.files.places import (
    is_local,
    keep,
    listed,
    read_small,
    remove,
    write_small,
)

CLAIMS = "claims"
"""The folder of the claims, beside the file."""

OLD_SECONDS = 600.0
LATE_SECONDS = 60.0
"""After so long a writer gives up: a last write may take some minutes, with its repetitions."""


def write_new(address: str, data: bytes) -> bool:
    """Write a small file that is not there; False: it is there, as somebody else wrote it.

    Where a folder has no hard links, two writers may both be told True.

    Raises:
        ArchiveUnavailable: as `write_small`; or another writer is at it.
    """
    return _linked(address, data) if is_local(address) else _claimed(address, data)


def _linked(address: str, data: bytes) -> bool:
    other = f"{address}.{uuid.uuid4().hex}"
    write_small(other, data)
    try:
        os.link(other, address)
    except FileExistsError:
        return False
    except OSError:
        write_small(address, data)
    finally:
        remove(other)
    keep(address)
    return True


def _claimed(address: str, data: bytes) -> bool:
    place = address.rpartition("/")[0]
    began, own = time.monotonic(), f"{place}/{CLAIMS}/{uuid.uuid4().hex}"
    write_small(own, data)
    try:
        _check_alone(place, own)
        if read_small(address) is not None:
            return False
        if time.monotonic() - began > LATE_SECONDS:
            raise ArchiveUnavailable(f"{place} cannot be taken: the store is too slow; repeat this later")
        write_small(address, data)
        return True
    finally:
        remove(own)


def _check_alone(place: str, own: str) -> None:
    claims = listed(f"{place}/{CLAIMS}")
    if own not in claims:
        raise ArchiveUnavailable(f"{place} cannot be taken: what was written to {own} is not listed there")
    for path, written in claims.items():
        if path == own:
            continue
        if claims[own] - written < OLD_SECONDS:
            raise ArchiveUnavailable(
                f"{place} is being taken by somebody else in this moment: repeat this, or choose another "
                f"place"
            )
        remove(path)
