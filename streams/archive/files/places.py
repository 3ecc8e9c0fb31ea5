"""Where the files of an archive lie: a folder of this machine, or a bucket; and what their failures mean.

An address of an archive has one form: an absolute path, or ``s3://BUCKET/...``, ``gs://BUCKET/...``.
Credentials and endpoints are those that every program finds in its environment (``AWS_ACCESS_KEY_ID``,
``AWS_ENDPOINT_URL``, ``GOOGLE_APPLICATION_CREDENTIALS``): none stands in Redis.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from streamlease.protocol.errors import ArchiveUnavailable, InvalidOption

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

OWNER_FILE = "streamlease-archive.json"
"""Says whose a place is, as long as it is an archive; see ``streams/spaces/archive_place.py``."""

_BUCKET = re.compile(r"(s3|gs)://([A-Za-z0-9][A-Za-z0-9._-]*)((?:/[^/\s?#]+)*)")
MOST_LETTERS = 500

CONNECT_SECONDS = 5
ANSWER_SECONDS = 30
"""How long a bucket may take for one request."""

PIECE = 4 * 1024 * 1024
"""How many bytes are read at once of a file in a bucket that is read as a whole."""
LOCAL_PIECE = 256 * 1024
"""The same of one in a folder."""


def checked_address(text: str) -> str:
    """The one form of an address.

    Raises:
        InvalidOption: it is none, or of a kind that is not known.
    """
    shown = ascii(text)[:80]
    if not isinstance(text, str) or not text.strip() or len(text) > MOST_LETTERS or not text.isprintable():
        raise InvalidOption(
            f"--archive {shown} is no place: give a folder, s3://BUCKET/... or gs://BUCKET/..."
        )
    plain = text.strip()
    plain = plain if plain.endswith("://") else plain.rstrip("/") or "/"
    if _BUCKET.fullmatch(plain):
        return plain
    scheme, colon, rest = plain.partition("://")
    if colon and scheme != "file":
        raise InvalidOption(
            f"--archive {shown} is of no kind that is known: give a folder, s3://BUCKET/... or gs://BUCKET/..."
        )
    path = str(Path(rest if colon else plain).expanduser().absolute())
    path = os.path.normpath(path)
    if path == "/" or (colon and not rest.startswith("/")) or set(path) & set("?#%*[]"):
        raise InvalidOption(
            f"--archive {shown} is no folder of its own, with a plain name: give one such as /data/NAME"
        )
    return path


def is_local(address: str) -> bool:
    """Whether it is a folder of this machine."""
    return address.startswith("/")


def endpoint() -> str | None:
    """Where the service for ``s3://`` is, if the environment names one."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def region() -> str:
    """In which region its buckets are."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


class _Where(NamedTuple):
    files: FileSystem
    path: str
    """As `files` wants it."""


def _where(address: str) -> _Where:
    kind = "" if is_local(address) else address.partition("://")[0]
    return _Where(_files(kind, os.getpid()), address if not kind else address.partition("://")[2])


@lru_cache(maxsize=8)
def _files(kind: str, process: int) -> FileSystem:
    """The client of a kind of store, one for each process: none outlives a fork."""
    from pyarrow import fs

    if not kind:
        return fs.LocalFileSystem()
    if kind == "s3":
        return fs.S3FileSystem(
            endpoint_override=endpoint(),
            region=region(),
            connect_timeout=CONNECT_SECONDS,
            request_timeout=ANSWER_SECONDS,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=3),
        )
    return fs.GcsFileSystem()


@contextmanager
def told(what: str, address: str) -> Iterator[None]:
    """What the store raises, as one line.

    Raises:
        FileNotFoundError: as it is.
        ArchiveUnavailable: for every other failure of the store.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        why = " ".join(str(error).split())[:300] or type(error).__name__
        remedy = "see that the store answers and lets this process do so, or name another place"
        raise ArchiveUnavailable(f"{address} cannot be {what} ({why}): {remedy}") from None


def open_to_read(address: str) -> object:
    """A file, for reading anywhere in it; what it raises then is for `told`."""
    where = _where(address)
    return where.files.open_input_file(where.path)


class FileSum(NamedTuple):
    """What was written of a file."""

    size: int
    sum: str


class NewFile:
    """A file that is being written, and summed up on its way. A local one is on disk when it is closed."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.size = 0
        self.closed = False
        self._sum = sha256()
        if is_local(address):
            Path(address).parent.mkdir(parents=True, exist_ok=True)
            self._to: object = Path(address).open("xb")  # noqa: SIM115
        else:
            where = _where(address)
            self._to = where.files.open_output_stream(where.path)

    def write(self, data: bytes) -> int:
        """As a file of Python's."""
        self._to.write(data)  # type: ignore[attr-defined]
        self._sum.update(data)
        size = len(memoryview(data).cast("B"))
        self.size += size
        return size

    def flush(self) -> None:
        """As a file of Python's; what matters is `finish`."""

    def tell(self) -> int:
        """As a file of Python's."""
        return self.size

    def writable(self) -> bool:
        """As a file of Python's."""
        return True

    def readable(self) -> bool:
        """As a file of Python's."""
        return False

    def seekable(self) -> bool:
        """As a file of Python's."""
        return False

    def close(self) -> None:
        """As a file of Python's; what matters is `finish`."""

    def finish(self) -> FileSum:
        """Close it; what was written."""
        if is_local(self.address):
            self._to.flush()  # type: ignore[attr-defined]
            os.fsync(self._to.fileno())  # type: ignore[attr-defined]
        self._to.close()  # type: ignore[attr-defined]
        self.closed = True
        if is_local(self.address):
            keep_folder(str(Path(self.address).parent))
        return FileSum(self.size, self._sum.hexdigest())

    def close_as_it_is(self) -> None:
        """Close it unfinished."""
        with suppress(OSError):
            self._to.close()  # type: ignore[attr-defined]

    def abandon(self) -> None:
        """Leave nothing of it behind, as far as the store lets that be done."""
        self.close_as_it_is()
        remove(self.address)


def keep(address: str) -> None:
    """See to it that a local file outlasts a crash of the machine; a bucket does so by itself."""
    if is_local(address):
        with Path(address).open("rb") as file:
            os.fsync(file.fileno())
        keep_folder(str(Path(address).parent))


def keep_folder(folder: str) -> None:
    """The same for the names of the files in a local folder."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def summed(address: str) -> FileSum:
    """Read a whole file: its size and sum.

    Raises:
        FileNotFoundError, OSError: for `told`.
    """
    where, sum, size = _where(address), sha256(), 0
    # A small piece stays in the cache of the processor; from a bucket, each is a request.
    buffer = memoryview(bytearray(LOCAL_PIECE if is_local(address) else PIECE))
    with where.files.open_input_file(where.path) as file:
        while read := file.readinto(buffer):
            sum.update(buffer[:read])
            size += read
    return FileSum(size, sum.hexdigest())


def size_of(address: str) -> int | None:
    """Its size; None if it is not there. Raises OSError, for `told`."""
    from pyarrow import fs

    where = _where(address)
    found = where.files.get_file_info(where.path)
    return found.size if found.type == fs.FileType.File else None


def remove(address: str) -> bool:
    """Remove a file; whether it is gone."""
    where = _where(address)
    try:
        where.files.delete_file(where.path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def listed(address: str) -> dict[str, float]:
    """The files below a folder, with when each was written, in seconds; none if there is no such folder.

    Raises:
        ArchiveUnavailable: the store does not say.
    """
    from pyarrow import fs

    where = _where(address)
    prefix = address[: len(address) - len(where.path)]
    with told("read", address):
        try:
            found = where.files.get_file_info(
                fs.FileSelector(where.path, recursive=True, allow_not_found=True)
            )
        except FileNotFoundError:
            return {}
    return {
        prefix + one.path: 0.0 if one.mtime_ns is None else one.mtime_ns / 1e9
        for one in found
        if one.type == fs.FileType.File
    }


def read_small(address: str) -> bytes | None:
    """What stands in a small file; None if there is none.

    Raises:
        ArchiveUnavailable: the store does not say.
    """
    where = _where(address)
    with told("read", address):
        try:
            with where.files.open_input_stream(where.path) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None


def write_small(address: str, data: bytes) -> None:
    """Write a small file, and read it again. Whoever reads it meanwhile finds the former one, or this one.

    Raises:
        ArchiveUnavailable: the store does not take it, or does not give it back as it was.
    """
    where = _where(address)
    with told("written", address):
        try:
            if is_local(address):
                _replace(where, data)
            else:
                with where.files.open_output_stream(where.path) as file:
                    file.write(data)
        except FileNotFoundError as error:  # such as a bucket that is not there
            raise OSError(str(error)) from None
    if read_small(address) != data:
        raise ArchiveUnavailable(f"{address} cannot be written: what was written there is not read again")


def _replace(where: _Where, data: bytes) -> None:
    """A local file as a whole: written beside its place, and then put there."""
    place, beside = Path(where.path), f"{where.path}.{uuid.uuid4().hex}"
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        with where.files.open_output_stream(beside) as file:
            file.write(data)
        keep(beside)
        Path(beside).replace(place)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
    keep_folder(str(place.parent))


def tried(address: str) -> None:
    """Write a file at `address`, read it again, and remove it: whether an archive can be there.

    Raises:
        ArchiveUnavailable: it cannot.
    """
    trial = f"{address}/trial-{uuid.uuid4().hex}"
    write_small(trial, b"can this be written?")
    if not remove(trial):
        raise ArchiveUnavailable(f"{address} cannot be used: a file that was written there cannot be removed")


def remove_folders(address: str) -> None:
    """Remove a local folder and those below it, as far as they are empty; a bucket has none."""
    if is_local(address):
        for folder, _, _ in os.walk(address, topdown=False):
            with suppress(OSError):
                Path(folder).rmdir()
