"""Programs that the tests need and no package brings: Redis 7, an MQTT broker, a browser."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from scripts.setting_up.steps import CACHE, SetupError, run_logged, step

REDIS7 = CACHE / "redis7"
REDIS_VARIABLE = "STREAMLEASE_TEST_REDIS_SERVER"
# Of Debian's redis-server package and what it links to, what a small system may lack.
REDIS_PACKAGES = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1", "libatomic1")
BROWSER_PACKAGES = {"chromium": ("chromium", "google-chrome"), "chromium-driver": ("chromedriver",)}
MOSQUITTO_VARIABLE = "STREAMLEASE_TEST_MOSQUITTO"
MOSQUITTO = CACHE / "mosquitto"
PROMETHEUS_VARIABLE = "STREAMLEASE_TEST_PROMETHEUS"
PROMETHEUS = CACHE / "prometheus"
WRAPPER = """\
#!/bin/sh
# Written by run.py: runs the unpacked server with the libraries that were unpacked beside it.
here=$(cd "$(dirname "$0")" && pwd)
libraries=$(echo "$here"/files/usr/lib/*-linux-gnu*)
LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" exec "$here/files/PROGRAM" "$@"
"""


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


def is_prometheus(program: str | Path) -> bool:
    """Whether that is a Prometheus which runs, with promtool beside it."""
    try:
        for one in (program, Path(program).resolve().with_name("promtool")):
            said = subprocess.run([one, "--version"], capture_output=True, text=True, check=False)
            if "version 2." not in said.stdout + said.stderr:
                return False
    except OSError:
        return False
    return True


def provide_prometheus() -> Path:
    """A Prometheus for the tests of the alerts: named, installed, unpacked before, or unpacked now."""
    how_else = f"install prometheus 2, or set {PROMETHEUS_VARIABLE} to one with promtool beside it"
    named = os.environ.get(PROMETHEUS_VARIABLE)
    if named:
        if not is_prometheus(named):
            raise SetupError(
                f"{PROMETHEUS_VARIABLE} names {named}, which is no Prometheus 2 with promtool beside it"
            )
        return Path(named)
    program = PROMETHEUS / "files" / "usr" / "bin" / "prometheus"
    for found in (shutil.which("prometheus"), program):
        if found is not None and is_prometheus(found):
            return Path(found)
    with step("unpacking Debian's prometheus (19 MB) into .cache/prometheus for the tests"):
        # What else Debian's package wants is for its pages.
        unpack("prometheus", ["prometheus"], PROMETHEUS, "usr/bin/prometheus", how_else)
    if not is_prometheus(program):
        shutil.rmtree(PROMETHEUS, ignore_errors=True)
        raise SetupError(f"the prometheus that apt-get gave does not start: {how_else}")
    return program


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
