"""Files of jobs that executors fetch themselves: from their machine's disk, or from a bucket.

An address is ``file:///PATH``, ``s3://BUCKET/KEY`` or ``gs://BUCKET/KEY``. What stands there is part of what
is signed, by its hash: whoever submits reads it, or says the hash behind the address (``#sha256=HEX``) if
only executors reach it. An executor runs nothing of which the hash is another one.

Credentials are those of the environment, of who submits and of the executor; none travels with a job.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streamlease.protocol.errors import ArchiveUnavailable, InvalidInput, QueryRefused
from streamlease.queries.core.signed_orders import JobFile, check_file_name
from streamlease.streams.archive.files.places import PIECE, open_to_read, told

SCHEMES = ("file://", "s3://", "gs://")
MOST_FETCHED = 8 * 1024**3
"""Bytes of one file."""

_BUCKET = re.compile(r"(?:s3|gs)://[A-Za-z0-9][A-Za-z0-9._-]*(?:/[^/\s?#]+)+")
_HASH = re.compile(r"[0-9a-f]{64}")
_MARK = "#sha256="


def is_fetched(place: str) -> bool:
    """Whether that is an address from which executors fetch a file."""
    return place.startswith(SCHEMES)


def fetched_file(place: str) -> JobFile:
    """The description of such a file; reads it unless its hash is given.

    Raises:
        InvalidInput: it is no address, or cannot be read, or is too large.
    """
    uri, mark, digest = place.partition(_MARK)
    shown = ascii(place)[:200]
    path = Path(uri.removeprefix("file://"))
    if not (
        path.is_absolute() and ".." not in path.parts if uri.startswith("file://") else _BUCKET.fullmatch(uri)
    ):
        raise InvalidInput(
            f"{shown} is no place: give file:///FOLDER/NAME, a path on the executors, or s3://BUCKET/NAME or "
            f"gs://BUCKET/NAME"
        )
    name = check_file_name(path.name)
    if mark:
        if not _HASH.fullmatch(digest):
            raise InvalidInput(f"{shown}: behind {_MARK} stand the 64 hexadecimal digits of 'sha256sum NAME'")
        return JobFile(name=name, sha256=digest, uri=uri)
    sum_, size = hashlib.sha256(), 0
    try:
        for piece in _pieces(uri):
            sum_.update(piece)
            size += len(piece)
            if size > MOST_FETCHED:
                raise InvalidInput(f"{shown} is larger than {MOST_FETCHED // 1024**3} GiB")
    except (OSError, ArchiveUnavailable) as error:
        raise InvalidInput(
            f"{shown} cannot be read here ({_why(error)}), and what is to be run must be known: put its hash "
            f"behind it, {uri}{_MARK}HEX"
        ) from None
    return JobFile(name=name, sha256=sum_.hexdigest(), size=size, uri=uri)


def fetch(file: JobFile, target: Path) -> None:
    """Put such a file there.

    Raises:
        QueryRefused: it cannot be read, or is not what was signed.
        OSError: it cannot be written.
    """
    if not _HASH.fullmatch(file.sha256):
        raise QueryRefused(f"the order says no hash of {file.uri}: submit the job again")
    most = file.size or MOST_FETCHED
    sum_, size = hashlib.sha256(), 0
    with target.open("xb") as to:
        pieces = _pieces(file.uri)
        while True:
            try:
                piece = next(pieces, b"")
            except (OSError, ArchiveUnavailable) as error:
                raise QueryRefused(f"{file.uri} cannot be read: {_why(error)}") from None
            if not piece or size > most:
                break
            sum_.update(piece)
            size += len(piece)
            to.write(piece)
    found = sum_.hexdigest()
    if found != file.sha256:
        raise QueryRefused(
            f"{file.uri} is not what was signed: it has the hash {found[:12]}..., not {file.sha256[:12]}...: "
            f"submit the job again if that is right"
        )


def _pieces(uri: str) -> Iterator[bytes]:
    with told("read", uri):
        opened: Any = open_to_read(uri.removeprefix("file://"))
        with opened as file:
            while piece := file.read(PIECE):
                yield piece


def _why(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    return " ".join(str(error).split())[:200]
