"""compose.yaml without a Docker engine: its services run as processes, by their commands and variables."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from streamlease.admin.redis.server_process import find_server, free_port
from tests.admin.command import SCRIPT, until
from tests.servers import ROOT

pytestmark = pytest.mark.thorough
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


def composed(**given: str) -> dict[str, Any]:
    """The services, with variables put in as Compose does."""
    text = (ROOT / "compose.yaml").read_text()
    filled = VARIABLE.sub(lambda found: given.get(found[1]) or found[2], text)
    assert re.findall(r"(?<!\$)\$[A-Za-z{]", filled) == [], "a variable without a default"
    services: dict[str, Any] = yaml.safe_load(filled)["services"]
    return services


def shell(command: list[str]) -> list[str]:
    """A command as a container gets it."""
    return [word.replace("$$", "$") for word in command]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[int]:
    """The Redis of compose.yaml, its folders below `tmp_path`; its port."""
    service, port = composed(STREAMLEASE_PASSWORD="of-our-own")["redis"], free_port()
    program = tmp_path / "valkey-server"
    program.write_text(f'#!/bin/sh\nexec {find_server().path} "$@" --bind 127.0.0.1 --port {port}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "data").mkdir()
    words = [
        word.replace("/tmp/", f"{tmp_path}/").replace("/data", f"{tmp_path}/data")
        for word in shell(service["command"])
    ]
    environment = {**service["environment"], "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            with redis.Redis(port=port, password="of-our-own") as client:
                until(lambda: process.poll() is not None or answers(client))
                assert process.poll() is None
                yield port
        finally:
            process.terminate()


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def test_redis_wants_the_password_and_keeps_its_data(server: int) -> None:
    with redis.Redis(port=server) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    with redis.Redis(port=server, password="of-our-own") as client:
        wanted = {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction"}
        assert {name: client.config_get(name)[name] for name in wanted} == wanted


@pytest.mark.parametrize(("name", "port"), [("host", 8080), ("console", 8090)])
def test_a_service_serves_and_its_health_is_asked(name: str, port: int, server: int, tmp_path: Path) -> None:
    service, here = composed(STREAMLEASE_PASSWORD="of-our-own")[name], free_port()
    given = {
        key: value.replace("redis:6379", f"127.0.0.1:{server}") for key, value in variables(service).items()
    }
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LC_ALL": "C.UTF-8", **given}
    ask = shell(service["healthcheck"]["test"])
    assert ask[:2] == ["CMD", "python"]
    check = [sys.executable, *(word.replace(f":{port}/", f":{here}/") for word in ask[2:])]
    with subprocess.Popen(
        [str(SCRIPT), *service["command"], "--http-port", str(here)],
        env=environment,
        stdout=subprocess.DEVNULL,
    ) as process:
        try:
            assert subprocess.run(check, capture_output=True, check=False, timeout=60).returncode != 0
            until(lambda: subprocess.run(check, capture_output=True, check=False, timeout=60).returncode == 0)
        finally:
            process.terminate()
    assert process.returncode == 0


def variables(service: Mapping[str, Any]) -> dict[str, str]:
    given: dict[str, str] = service["environment"]
    assert given["STREAMLEASE_REDIS_URL"] == "redis://:of-our-own@redis:6379/0"
    return given


def test_nothing_listens_beyond_this_machine_and_all_images_can_be_made() -> None:
    services = composed()
    assert services.keys() == {"redis", "host", "console", "demo"}
    for service in services.values():
        assert all(published.startswith("127.0.0.1:") for published in service.get("ports", []))
        assert "no-new-privileges:true" in service["security_opt"]
    assert services["demo"]["profiles"] == ["demo"]
    assert services["demo"]["build"] == {"context": ".", "args": {"EXTRAS": "demo"}}
    names = {services[name]["image"] for name in ("host", "console")}
    assert len(names) == 1 and services["demo"]["image"] not in names
    for name in ("host", "console"):
        assert services[name]["depends_on"] == {"redis": {"condition": "service_healthy"}}
        assert services[name]["read_only"] is True and services[name]["tmpfs"] == ["/tmp"]
