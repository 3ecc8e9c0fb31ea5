"""``streamlease gateway`` as a process, and the ten lines of docs/gateway.md."""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import shutil
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from tests.admin.command import SCRIPT, Command, finish, lines_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gateway.md"


@pytest.fixture
def command(tmp_path: Path, embedded_redis_url: str) -> Command:
    command = Command(tmp_path, embedded_redis_url)
    command.ok("space", "create", "flights", "--topics", "flights/#", "--streams", "4")
    return command


@contextmanager
def serving(command: Command, *words: str) -> Iterator[str]:
    """The URL of a gateway; it must end in good order."""
    process = command.start("gateway", "--port", "0", *words)
    try:
        (said,) = lines_of(process, 1)
        assert said.startswith("the gateway is at http"), command.log.read_text()
        yield said.removeprefix("the gateway is at ").rstrip("/")
    finally:
        ended = finish(process)
    assert ended.code == 0, command.log.read_text()


def test_the_ten_lines_of_the_documentation(command: Command, tmp_path: Path) -> None:
    (script,) = re.findall(r"```bash\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert len([line for line in script.splitlines() if line.strip()]) <= 10
    path = os.environ["PATH"]
    if shutil.which("curl") is None:
        stand_in = tmp_path / "curl"
        source = Path(__file__).with_name("curl_stand_in.py")
        stand_in.write_text(f'#!/bin/sh\nexec {sys.executable} {source} "$@"\n')
        stand_in.chmod(0o755)
        path = f"{tmp_path}:{path}"
    with serving(command) as url:
        done = subprocess.run(
            ["sh", "-euc", script.replace("http://127.0.0.1:8640", url)],
            cwd=tmp_path, env={"PATH": path, "NO_PROXY": "*"}, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    single, many, page, *events = (
        done.stdout.decode().replace("}{", "}\n{").replace("}retry", "}\nretry").split("\n")
    )
    assert json.loads(single)["offset"] == 0
    assert json.loads(many)["messages"] == 2
    found = json.loads(page)["messages"]
    assert sorted(message["payload"] for message in found) == ["landed", "one", "two"]
    followed = [json.loads(line.removeprefix("data: ")) for line in events if line.startswith("data: ")]
    assert sorted(message["payload"] for message in followed) == ["landed", "one", "two"]


def test_it_serves_by_tls_and_with_tokens(command: Command, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "key")
    for place, blob in enumerate(certificate.cert_chain_pems):
        blob.write_to_path(tmp_path / "certificate", append=place > 0)
    secret = {"name": "n", "sha256": hashlib.sha256(b"secret").hexdigest(), "consume": ["flights/#"]}
    (tmp_path / "tokens").write_text(json.dumps({"tokens": [secret]}))
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    words = ("--certificate", str(tmp_path / "certificate"), "--key", str(tmp_path / "key"))
    with serving(command, *words, "--tokens", str(tmp_path / "tokens"), "--host", "0.0.0.0") as url:
        assert url.startswith("https://")
        request = urllib.request.Request(
            f"{url.replace('0.0.0.0', '127.0.0.1')}/v1/messages?filter=flights/1"
        )
        request.add_header("Authorization", "Bearer secret")
        with urllib.request.urlopen(request, context=trusting, timeout=30) as answer:
            assert json.loads(answer.read())["messages"] == []


def test_it_opens_as_many_files_as_it_may_and_says_if_they_are_too_few(command: Command) -> None:
    words = 'ulimit -Sn 200; ulimit -Hn 400; exec "$0" gateway --port 0 --max-polls 300'
    with (
        command.log.open("wb") as log,
        subprocess.Popen(
            ["sh", "-c", words, SCRIPT], stdout=subprocess.PIPE, stderr=log, env=command.environment
        ) as process,
    ):
        try:
            lines_of(process, 1)
            assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (400, 400)
        finally:
            process.terminate()
    assert process.returncode == 0
    assert "may open 400 files, and 300 polls may be open at once" in command.log.read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--host", "0.0.0.0"), "which others can reach: give --tokens FILE"),
        (("--port", "65536"), "--port is 65536"),
        (("--key", "x"), "give both --certificate and --key"),
        (("--key", "/nowhere", "--certificate", "/nowhere"), "give two PEM files that belong together"),
        (("--tokens", "/nowhere"), "the file of tokens /nowhere cannot be read"),
        (("--max-body", "0"), "--max-body"),
        (("--max-polls", "0"), "the limit of open polls is 0"),
        (("--max-channels", "0"), "the limit channels of channels is 0"),
        (("--max-client-channels", "0"), "the limit client_channels of channels is 0"),
        (("--max-client-webhooks", "0"), "the limit of webhooks is 0"),
        (("--idempotency-timeout", "10ms"), "is tried for 0.01 s"),
    ],
)
def test_bad_settings_are_told(command: Command, words: tuple[str, ...], told: str) -> None:
    outcome = (
        command("gateway", "--port", "0", *words) if "--port" not in words else command("gateway", *words)
    )
    assert outcome.code == 2 and told in outcome.err, outcome
