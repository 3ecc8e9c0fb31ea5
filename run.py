#!/usr/bin/env python3
"""Set everything up and run the demo, the tests or all checks. Needs Python 3.11 to 3.13, nothing else.

The first run makes ``.venv``, installs the pinned packages of ``requirements/`` and this project into it,
and finds Java and Redis. A stamp, written last, makes further runs quick and an interrupted one harmless.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

USAGE = """\
usage: python3 run.py COMMAND [ARGUMENT...]

  demo [argument...]         run the demo ('demo --help' lists its arguments)
  test                       run all tests, several at a time, and then those that need quiet
  test --fast                the same without those that start Java, browsers, clusters or Helm, or take long
  test pytest argument...    run pytest with these arguments, one test at a time ('test tests': all of them)
  check [--no-tests]         format, lint and types, then the tests
  setup                      only set up
"""
ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
UNFINISHED = VENV / "unfinished"  # there while packages are installed: an interrupted one is begun anew
CACHE = ROOT / ".cache"
LOG = CACHE / "setup.log"
REDIS7 = CACHE / "redis7"
REDIS_VARIABLE = "STREAMLEASE_TEST_REDIS_SERVER"
FIND_JAVA = "from streamlease.spark.setup.java import ensure_java; print(ensure_java())"
OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)
# Of Debian's redis-server package and what it links to, what a small system may lack.
REDIS_PACKAGES = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1", "libatomic1")
BROWSER_PACKAGES = {"chromium": ("chromium", "google-chrome"), "chromium-driver": ("chromedriver",)}
MOSQUITTO_VARIABLE = "STREAMLEASE_TEST_MOSQUITTO"
MOSQUITTO = CACHE / "mosquitto"
SLOW_SUITES = (
    "spark",
    "cluster",
    "chaos",
    "demo",
    "browser",
    "topology",
    "helm",
    "thorough",
)  # markers of pyproject.toml
NOTHING_TO_RUN, INTERRUPTED = 5, 2  # exit statuses of pytest
WRAPPER = """\
#!/bin/sh
# Written by run.py: runs the unpacked server with the libraries that were unpacked beside it.
here=$(cd "$(dirname "$0")" && pwd)
libraries=$(echo "$here"/files/usr/lib/*-linux-gnu*)
LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" exec "$here/files/PROGRAM" "$@"
"""


class SetupError(Exception):
    """Set-up cannot go on. One line: what is wrong and what to do."""


def say(text: str) -> None:
    sys.stderr.write(f"run.py: {text}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def step(text: str) -> Iterator[None]:
    """One line when a long step begins and one when it is done."""
    say(f"{text} ...")
    began = time.monotonic()
    yield
    say(f"{text}: done in {time.monotonic() - began:.0f} s")


def run_logged(command: Sequence[str | Path], *, failed: str, cwd: Path = ROOT) -> None:
    """Run a command with its output in the log; raise ``SetupError`` with its last words if it fails."""
    with LOG.open("a") as log:
        log.write(f"$ {' '.join(map(str, command))}\n")
        log.flush()
        begin = log.tell()
        code = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=cwd, check=False
        ).returncode
    if code != 0:
        with LOG.open(errors="replace") as log:
            log.seek(begin)
            said = [line.strip() for line in log if line.strip()]
        errors = [line for line in said if line.lower().startswith(("error", "e:"))]
        why = (errors or said or [f"it ended with status {code}"])[-1]
        raise SetupError(f"{failed}: {why} (all of it is in {LOG.relative_to(ROOT)})")


def check_python() -> None:
    if not OLDEST_PYTHON <= sys.version_info[:2] <= NEWEST_PYTHON:
        raise SetupError(
            f"this is Python {sys.version_info[0]}.{sys.version_info[1]}, "
            "and Streamlease needs 3.11, 3.12 or 3.13: "
            "call run.py with one of these, such as 'python3.12 run.py ...'"
        )
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        raise SetupError(
            f"this Python has no module {missing[0]}: run 'apt-get install python3-venv' "
            "(or install a complete Python) and try again"
        )


def fingerprint(profile: str) -> str:
    """What a set-up depends on: pins, project tables, this Python and this folder."""
    digest = hashlib.sha256()
    for name in ("requirements/build.txt", f"requirements/{profile}.txt", "pyproject.toml"):
        digest.update((ROOT / name).read_bytes())
    digest.update(f"{sys.version} {sys.base_prefix} {ROOT}".encode())
    return digest.hexdigest()


def is_set_up(profile: str) -> bool:
    with contextlib.suppress(OSError):
        return (VENV / f"stamp-{profile}").read_text() == fingerprint(profile)
    return False


def venv_is_usable() -> bool:
    """Whether .venv runs this Python, has pip, and no installation into it was interrupted."""
    if UNFINISHED.exists():
        return False
    try:
        asked = subprocess.run(
            [PYTHON, "-c", "import sys, pip; print(sys.version)"], capture_output=True, text=True, check=False
        )
    except OSError:
        return False
    return asked.returncode == 0 and asked.stdout.strip() == sys.version.strip()


def set_up(profile: str) -> None:
    """Make ``.venv`` hold the packages of ``requirements/<profile>.txt`` and this project, editable."""
    if is_set_up(profile):
        return
    if not venv_is_usable():
        with step(f"making .venv with Python {'.'.join(map(str, sys.version_info[:3]))}"):
            shutil.rmtree(VENV, ignore_errors=True)
            base_python = getattr(sys, "_base_executable", sys.executable)  # we may run inside .venv
            run_logged([base_python, "-m", "venv", VENV], failed="cannot make .venv")
    for stamp in VENV.glob("stamp-*"):
        stamp.unlink()
    UNFINISHED.touch()
    pip: list[str | Path] = [PYTHON, "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    pinned = [*pip, "--require-hashes", "--no-build-isolation"]
    with step("installing the pinned packages, about 1 GB; this takes a minute or more"):
        for name in ("build", profile):
            run_logged([*pinned, "-r", f"requirements/{name}.txt"], failed="cannot install the packages")
    with step("installing streamlease, editable"):
        run_logged(
            [*pip, "--no-deps", "--no-build-isolation", "-e", "."], failed="cannot install streamlease"
        )
    with step("looking for Java"):
        run_logged([PYTHON, "-c", FIND_JAVA], failed="cannot find a Java for Spark")
    for done in {profile, "base"}:  # dev holds all of base
        (VENV / f"stamp-{done}").write_text(fingerprint(done))
    UNFINISHED.unlink()


def redis7_version(program: str | Path) -> int:
    """The major version of that Redis server; 0 if it does not run or is another server."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return 0
    version = re.search(r"Redis server v=(\d+)\.", said)
    return int(version.group(1)) if version else 0


def provide_redis7() -> Path:
    """A Redis of version 7 or newer for the tests: named, installed, unpacked before, or unpacked now."""
    named = os.environ.get(REDIS_VARIABLE)
    if named:
        if redis7_version(named) < 7:
            raise SetupError(
                f"{REDIS_VARIABLE} names {named}, which is no Redis server of version 7 or newer"
            )
        return Path(named)
    installed = shutil.which("redis-server")
    if installed and redis7_version(installed) >= 7:
        return Path(installed)
    wrapper = REDIS7 / "redis-server"
    if redis7_version(wrapper) < 7:
        with step("unpacking Debian's redis-server into .cache/redis7 for the tests"):
            unpack_redis7()
    return wrapper


def unpack_redis7() -> None:
    how_else = f"install redis-server 7 or newer, or set {REDIS_VARIABLE} to the path of one"
    unpack("redis-server", REDIS_PACKAGES, REDIS7, "usr/bin/redis-server", how_else)
    if redis7_version(REDIS7 / "redis-server") < 7:
        shutil.rmtree(REDIS7, ignore_errors=True)
        raise SetupError(f"the Redis server that apt-get gave does not start or is older than 7: {how_else}")


def unpack(package: str, packages: Sequence[str], place: Path, program: str, how_else: str) -> None:
    """Unpack Debian's `packages` into `place`, with a script there that runs `program` of them."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise SetupError(f"the tests need {package} and there is no {tool} to get it with: {how_else}")
    scratch = CACHE / f"{place.name}.{os.getpid()}"
    shutil.rmtree(scratch, ignore_errors=True)
    (scratch / "packages").mkdir(parents=True)
    try:
        download = ["apt-get", "download", *packages]
        failed = f"cannot download Debian's {package} ({how_else})"
        try:
            run_logged(download, failed=failed, cwd=scratch / "packages")
        except SetupError:
            if os.geteuid() != 0:
                raise
            run_logged(["apt-get", "update"], failed=failed)
            run_logged(download, failed=failed, cwd=scratch / "packages")
        for found in sorted((scratch / "packages").glob("*.deb")):
            run_logged(["dpkg-deb", "-x", found, scratch / "files"], failed=f"cannot unpack {found.name}")
        wrapper = scratch / Path(program).name
        wrapper.write_text(WRAPPER.replace("PROGRAM", program))
        wrapper.chmod(0o755)
        shutil.rmtree(scratch / "packages")
        shutil.rmtree(place, ignore_errors=True)
        scratch.rename(place)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def is_mosquitto(program: str | Path) -> bool:
    """Whether that is a Mosquitto which runs."""
    try:
        said = subprocess.run([program, "-h"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return False
    return said.startswith("mosquitto version 2")


def provide_mosquitto() -> Path:
    """An MQTT broker for the tests of the bridge: named, installed, unpacked before, or unpacked now."""
    how_else = f"install mosquitto 2, or set {MOSQUITTO_VARIABLE} to the path of one"
    named = os.environ.get(MOSQUITTO_VARIABLE)
    if named:
        if not is_mosquitto(named):
            raise SetupError(f"{MOSQUITTO_VARIABLE} names {named}, which is no Mosquitto of version 2")
        return Path(named)
    wrapper = MOSQUITTO / "mosquitto"
    for found in (shutil.which("mosquitto"), "/usr/sbin/mosquitto", wrapper):
        if found is not None and is_mosquitto(found):
            return Path(found)
    with step("unpacking Debian's mosquitto into .cache/mosquitto for the tests"):
        unpack("mosquitto", mosquitto_packages(how_else), MOSQUITTO, "usr/sbin/mosquitto", how_else)
    if not is_mosquitto(wrapper):
        shutil.rmtree(MOSQUITTO, ignore_errors=True)
        raise SetupError(f"the mosquitto that apt-get gave does not start: {how_else}")
    return wrapper


def mosquitto_packages(how_else: str) -> list[str]:
    """Debian's mosquitto and what it links to, as far as this machine lacks it."""
    ask = ["apt-get", "--simulate", "--no-install-recommends", "install", "mosquitto"]
    if shutil.which(ask[0]) is None:
        raise SetupError(f"the tests need mosquitto and there is no {ask[0]} to get it with: {how_else}")
    for update in (os.geteuid() == 0, False):
        said = subprocess.run(ask, capture_output=True, text=True, check=False).stdout
        packages = re.findall(r"^Inst (\S+)", said, re.MULTILINE)
        if packages or not update:
            break
        run_logged(["apt-get", "update"], failed=f"cannot look for Debian's mosquitto ({how_else})")
    return packages or ["mosquitto"]


def provide_browser() -> None:
    """A Chromium and its driver for the tests of the page: there already, or installed now by root."""
    missing = [
        package
        for package, names in BROWSER_PACKAGES.items()
        if not any(shutil.which(name) for name in names)
    ]
    if not missing:
        return
    how_else = (
        f"install {' and '.join(missing)}, or leave these tests out: python3 run.py test -m 'not browser'"
    )
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise SetupError(f"the tests of the page need a browser, and only root may install one: {how_else}")
    install = [
        "env",
        "DEBIAN_FRONTEND=noninteractive",
        "apt-get",
        "install",
        "--yes",
        "--no-install-recommends",
        *missing,
        "fonts-dejavu-core",
    ]
    failed = f"cannot install Debian's chromium ({how_else})"
    with step("installing Debian's chromium for the tests of the page"):
        try:
            run_logged(install, failed=failed)
        except SetupError:
            run_logged(["apt-get", "update"], failed=failed)
            run_logged(install, failed=failed)


@contextlib.contextmanager
def taking_turns() -> Iterator[None]:
    """Two runs of this program do not set up at the same time."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "setup.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another run of run.py that is setting up")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def environment() -> dict[str, str]:
    """The environment of all that is run: the programs of .venv come first, and modules are compiled once.

    Strings hash alike in all processes: the workers of a run collect the same tests, and a seed of the
    simulation is the same run tomorrow.
    """
    path = f"{PYTHON.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    ours = {"PYTHONHASHSEED": "0", **os.environ, "VIRTUAL_ENV": str(VENV), "PATH": path}
    ours.pop("PYTHONDONTWRITEBYTECODE", None)  # each of many processes would compile all modules anew
    return ours


def become(program: str, *arguments: str) -> NoReturn:
    """Be replaced by a program of .venv, so that its signals and its exit status are its own."""
    os.chdir(ROOT)
    path = str(PYTHON.parent / program)
    os.execve(path, [path, *arguments], environment())


def run_tool(*arguments: str) -> int:
    """Run a Python module of .venv to its end; its exit status. Ctrl-C ends the tool, which then returns."""
    with subprocess.Popen([PYTHON, "-m", *arguments], cwd=ROOT, env=environment()) as process:
        while True:
            try:
                code = process.wait()
                return code if code >= 0 else 128 - code
            except KeyboardInterrupt:
                continue


def workers() -> int:
    """How many tests run at a time: most of them wait, so it is one more than there are processors."""
    return min((os.cpu_count() or 1) + 1, 8)


def run_tests(*, fast: bool) -> int:
    """Run the tests side by side, of which the slowest are told, then those marked ``quiet`` one by one.

    Returns:
        the first exit status but 0.
    """
    chosen = "".join(f" and not {suite}" for suite in SLOW_SUITES) if fast else ""
    side_by_side = ("-n", str(workers()), "--dist", "loadfile", "--no-loadscope-reorder", "--durations=20")
    outcomes: list[str] = []
    failed = 0
    for what, marks, options in (
        ("side by side", "not quiet", side_by_side),
        ("one by one", "quiet", ("-n", "0")),
    ):
        say(f"tests {what}: pytest {' '.join(options)} -m '{marks}{chosen}'")
        began = time.monotonic()
        code = run_tool("pytest", *options, "-m", marks + chosen)
        if code != NOTHING_TO_RUN:
            ended = f"failed with status {code}" if code else "passed"
            outcomes.append(f"{what} {ended} in {time.monotonic() - began:.0f} s")
            failed = failed or code
        if code == INTERRUPTED or code > 128:
            break
    say(f"tests: {', '.join(outcomes) or 'nothing to run'}")
    return failed if outcomes else NOTHING_TO_RUN


def check_sources() -> int:
    checks = {
        "format": ("ruff", "format", "--check", "."),
        "lint": ("ruff", "check", "."),
        "types": ("mypy",),
        "types of the set-up": ("mypy", "run.py", "scripts", "tests/servers.py", "tests/conftest.py"),
    }
    failed = 0
    for what, command in checks.items():
        say(f"checking {what}")
        code = run_tool(*command)
        if code:
            say(f"checking {what}: failed")
        failed = failed or code
    return failed


def main(arguments: Sequence[str]) -> int:
    if not arguments:
        sys.stderr.write(USAGE)
        return 2
    command, *rest = arguments
    if command in ("-h", "--help", "help"):
        sys.stdout.write(USAGE)
        return 0
    accepts = {"demo": True, "test": True, "setup": not rest, "check": rest in ([], ["--no-tests"])}
    if not accepts.get(command):
        sys.stderr.write(f"run.py: cannot do {' '.join(arguments)!r}\n{USAGE}")
        return 2
    check_python()
    with_tests = command == "test" or (command == "check" and not rest)
    with taking_turns():
        set_up("base" if command == "demo" else "dev")
        if with_tests or command == "setup":
            os.environ[REDIS_VARIABLE] = str(provide_redis7())
            os.environ[MOSQUITTO_VARIABLE] = str(provide_mosquitto())
        if with_tests and rest != ["--fast"] and "not browser" not in " ".join(rest):
            provide_browser()
    if command == "demo":
        become("streamlease", "demo", *rest)
    if command == "test" and rest not in ([], ["--fast"]):
        become("python", "-m", "pytest", *rest)
    failed = check_sources() if command == "check" else 0
    if with_tests:
        failed = run_tests(fast=rest == ["--fast"]) or failed
    return failed


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except SetupError as problem:
        say(str(problem))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
