"""The folders in which programs run: each is removed at the end, also if its executor was killed.

::

    FOLDER/QUERY_LIFE_WORKER         what the program and its files are in
    FOLDER/QUERY_LIFE_WORKER.lock    locked by the executor, and by the guard of the program, while one lives

Several executors may share FOLDER, of several servers of Redis. What nobody has locked is of the dead, and
goes when the next executor starts there.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
from pathlib import Path

log = logging.getLogger(__name__)

_RUN = re.compile(r"(?P<run>[0-9a-f]{16}(?:\.[0-9]+)?_[0-9a-f]{8}_[0-9]+)(?:\.lock)?")


def run_name(query: str, life: str, worker: int) -> str:
    """The name of the folder of a worker, under a life of an executor."""
    return f"{query}_{life[:8]}_{worker}"


def make(folder: Path) -> int:
    """Make the folder of a worker; the file of its lock.

    Raises:
        OSError: it cannot be made.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Locked before the folder is there: a folder without a lock is of the dead.
    lock = _opened(folder)
    try:
        folder.mkdir()
    except OSError:
        os.close(lock)
        raise
    return lock


def remove(folder: Path, lock: int) -> None:
    """Remove it at the end, as the one who made it."""
    shutil.rmtree(folder, ignore_errors=True)
    _lock_of(folder).unlink(missing_ok=True)
    os.close(lock)


def remove_left(folder: Path) -> None:
    """Remove what dead executors have left in it."""
    found = {match["run"] for path in folder.glob("*") if (match := _RUN.fullmatch(path.name))}
    for run in found:
        try:
            lock = _opened(folder / run, wait=False)
        except BlockingIOError:
            continue  # somebody runs it
        except OSError as error:
            log.warning("what a dead executor left in %s cannot be removed: %s", folder / run, error)
            continue
        remove(folder / run, lock)


def _opened(folder: Path, *, wait: bool = True) -> int:
    """The lock of a folder, locked."""
    path = _lock_of(folder)
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            os.close(lock)
            raise
        if path.exists() and os.path.samestat(os.fstat(lock), path.stat()):
            return lock
        os.close(lock)  # whoever had it took the file away


def _lock_of(folder: Path) -> Path:
    return Path(f"{folder}.lock")
