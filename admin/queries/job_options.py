"""A job, from what is given to ``streamlease submit``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from streamlease.protocol.errors import InvalidInput, InvalidOption

if TYPE_CHECKING:
    from streamlease.queries.core.signed_orders import JobFile

_PAIR = re.compile(r"([^=\s]+)=(.*)\Z", re.DOTALL)


def pairs(option: str, given: Sequence[str] | None) -> tuple[tuple[str, str], ...]:
    """``K=V``, in the order of the names.

    Raises:
        InvalidOption: one is something else, or a name comes twice.
    """
    found: dict[str, str] = {}
    for one in given or ():
        match = _PAIR.match(one)
        if match is None or match[1] in found:
            raise InvalidOption(f"{option} {ascii(one)[:80]}: give NAME=VALUE, each name once")
        found[match[1]] = match[2]
    return tuple(sorted(found.items()))


class Upload(NamedTuple):
    """A file of a job, and its content if that travels through Redis."""

    file: JobFile
    content: bytes | None


def uploads(program: str, files: Sequence[str]) -> list[Upload]:
    """The program, and the other files.

    Raises:
        InvalidInput: one is not there, or has no name that a file of a job may have; or they are too large.
        OSError: one cannot be read.
    """
    from streamlease.queries.core.signed_orders import MOST_BYTES

    found: list[Upload] = []
    left = MOST_BYTES
    for place in (program, *files):
        one = _upload(place, left)
        if any(one.file.name == other.file.name for other in found):
            raise InvalidInput(f"two files of the job are called {one.file.name}: rename one of them")
        left -= len(one.content or b"")
        found.append(one)
    return found


def _upload(place: str, left: int) -> Upload:
    from streamlease.queries.core.signed_orders import MOST_BYTES, check_file_name
    from streamlease.queries.fetched_files import fetched_file, is_fetched
    from streamlease.queries.files import file_of

    if is_fetched(place):
        return Upload(fetched_file(place), None)
    path = Path(place)
    check_file_name(path.name)
    if not path.is_file():
        raise InvalidInput(
            f"there is no file {ascii(place)[:200]}: give one that is here, file:///PATH on the "
            f"executors, s3://... or gs://..."
        )
    if path.stat().st_size > left:
        raise InvalidInput(
            f"with {ascii(place)[:200]} ({path.stat().st_size:,} bytes) the files of the job are larger than "
            f"{MOST_BYTES // 1024**2} MiB: put it where executors reach it, and give "
            f"file:///PATH, s3://... or gs://..."
        )
    content = path.read_bytes()
    return Upload(file_of(path.name, content), content)
