"""A long installation as it goes: what it says into the log, and how far it is on standard error.

On a terminal one line is written over and over; elsewhere there is a line every quarter of a minute.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.setting_up.steps import LOG, ROOT, SetupError, failure, held, say

_SHOWN_EVERY = 0.5
_SAID_EVERY = 15.0
_AWAY = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeoutError|ConnectionResetError|ProxyError|MaxRetryError"
    r"|CERTIFICATE_VERIFY_FAILED|UnknownIssuer"
    r"|dns error|error sending request|Connection refused|Temporary failure in name resolution|timed out"
)
_COLLECTED = re.compile(
    r"(?:Collecting|Requirement already satisfied:) ([\w.-]+)|Ignoring ([\w.-]+): markers"
)
_FETCHED = re.compile(r"Downloading (\S+) \(([\d.]+) (kB|MB|GB)\)")
_BUILT = re.compile(r"Building wheel for ([\w.-]+)|Preparing metadata")
_UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9}


class PipProgress:
    """How far pip is, from what it prints and from the files that grow.

    Args:
        packages: how many there are.
    """

    def __init__(self, packages: int) -> None:
        self.downloads: Path | None = None
        self._packages = packages
        self._before = 0
        self._seen = 0
        self._doing = ""
        self._file = ""
        self._size = 0.0
        self._fetched = 0.0

    def skip(self, packages: int) -> None:
        """So many are there already; and what was seen of a portion is done."""
        self._before += self._seen + packages
        self._seen = 0
        self._file = self._doing = ""

    def hear(self, line: str) -> None:
        if found := _COLLECTED.match(line):
            self._seen += 1
            self._doing, self._file = found[1] or "", ""
        elif found := _FETCHED.search(line):
            self._doing, self._file = "", found[1].rpartition("/")[2]
            self._size = float(found[2]) * _UNITS[found[3]]
            self._fetched += self._size
        elif found := _BUILT.search(line):
            self._doing, self._file = f"building {found[1] or self._file}", ""
        elif line.startswith("Installing collected packages"):
            self._doing, self._file = "writing files", ""

    def text(self) -> str:
        at = f"package {self._before + self._seen} of {self._packages}"
        if self._file:
            return f"{at}: downloading {self._file}, {self._here() / 1e6:.0f} of {self._size / 1e6:.0f} MB"
        return f"{at}: {self._doing}" if self._doing else at

    def _here(self) -> float:
        """How much of the file that is being downloaded is there."""
        sizes = [0]
        with contextlib.suppress(OSError):  # they come and go
            for found in (self.downloads or Path()).glob(f"pip-*/**/{self._file}"):
                sizes.append(found.stat().st_size)
        return min(max(sizes), self._size)


class _Shown:
    """The line about how far it is."""

    def __init__(self) -> None:
        self._over = sys.stderr.isatty()
        self._last = time.monotonic()
        self._began = self._last

    def show(self, text: str) -> None:
        now = time.monotonic()
        if now - self._last < (_SHOWN_EVERY if self._over else _SAID_EVERY):
            return
        self._last = now
        if self._over:
            width = os.get_terminal_size(sys.stderr.fileno()).columns
            sys.stderr.write(f"\r\x1b[K{f'run.py: {text}'[: width - 1]}")
            sys.stderr.flush()
        else:
            say(text)

    def end(self) -> None:
        if self._over:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def watched(
    command: Sequence[str | Path],
    *,
    failed: str,
    progress: PipProgress | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a command with its output in the log, and show how far it is.

    Raises:
        SetupError: it failed; if no index could be reached, that, and how to go on.
    """
    said: list[str] = []
    shown, began, told = _Shown(), time.monotonic(), False
    with LOG.open("a") as log:
        log.write(f"$ {' '.join(map(str, command))}\n")
        with (
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                cwd=ROOT, env=environment, pass_fds=held,
            ) as process,
            selectors.DefaultSelector() as ready,
        ):  # fmt: skip
            assert process.stdout is not None
            ready.register(process.stdout, selectors.EVENT_READ)
            rest = b""
            while True:
                if ready.select(_SHOWN_EVERY):
                    data = os.read(process.stdout.fileno(), 65536)
                    *lines, rest = (rest + data).split(b"\n") if data else [rest, b""]
                    for raw in lines:
                        line = raw.decode(errors="replace").rstrip()
                        log.write(f"{line}\n")
                        said.append(line)
                        if progress is not None:
                            progress.hear(line)
                        if not told and "Retrying" in line and _AWAY.search(line):
                            told = True
                            shown.end()
                            say("the package index does not answer; trying again")
                    log.flush()
                    if not data:
                        break
                shown.show(progress.text() if progress else f"{time.monotonic() - began:.0f} s so far")
    shown.end()
    if process.returncode != 0:
        raise SetupError(_why(failed, said, process.returncode))


def _why(failed: str, said: Sequence[str], code: int) -> str:
    reasons = [found[0] for line in said if (found := _AWAY.search(line))]
    missing = any("No matching distribution" in line or "No solution" in line for line in said)
    if {"CERTIFICATE_VERIFY_FAILED", "UnknownIssuer"} & {*reasons}:
        return (
            f"{failed}: the certificate of the package index is not trusted here: name a file with the right "
            f"ones (SSL_CERT_FILE and PIP_CERT), and run the same command again (all of it is in "
            f"{LOG.relative_to(ROOT)})"
        )
    if reasons and (missing or not any(line.startswith("ERROR: THESE") for line in said)):
        return (
            f"{failed}: the package index cannot be reached ({reasons[-1]}): connect this machine to "
            f"a network, or give pip and uv a mirror, and run the same command again; it goes on where "
            f"it stopped (all of it is in {LOG.relative_to(ROOT)})"
        )
    return failure(failed, said, code)
