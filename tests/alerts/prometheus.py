"""A real Prometheus with the rules of the chart, and its promtool.

``$STREAMLEASE_TEST_PROMETHEUS``, ``prometheus`` of this machine, or the one that ``run.py`` unpacked below
``.cache/prometheus``. It dies with the test process.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import yaml

from streamlease.admin.redis import server_process
from tests.servers import ROOT, ServerMissing

VARIABLE = "STREAMLEASE_TEST_PROMETHEUS"
UNPACKED = ROOT / ".cache" / "prometheus" / "files" / "usr" / "bin" / "prometheus"
RULES = ROOT / "helm" / "streamlease" / "files" / "alerts.yaml"
SECONDS = 90.0


def find_prometheus() -> Path:
    """The program, with promtool beside it. Raises ``ServerMissing``."""
    for found in (os.environ.get(VARIABLE), shutil.which("prometheus"), str(UNPACKED)):
        if found is not None and os.access(found, os.X_OK):
            return Path(found).resolve()
    raise ServerMissing(
        "these tests need Prometheus: run them with 'python3 run.py test', which gets one, or install "
        f"prometheus, or set {VARIABLE} to its path"
    )


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the promtool that came with it."""
    tool = find_prometheus().with_name("promtool")
    return subprocess.run([tool, *words], capture_output=True, text=True, check=False)


def rules() -> list[dict[str, Any]]:
    """The rules of the chart, those that record among them."""
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def quick_rules() -> str:
    """The rules of the chart with seconds for minutes, and what must last for minutes for moments."""
    quick = []
    for rule in rules():
        expr = re.sub(r"\[(\d+)m\]", r"[\1s]", rule["expr"])
        expr = re.sub(r"(_seconds\)?) > (?:30|60|300)\b", r"\1 > 1", expr)
        expr = re.sub(r"> 10$", "> 0.5", expr)
        quick.append(rule | {"expr": expr} | ({"for": "1s"} if "for" in rule else {}))
    return yaml.safe_dump({"groups": [{"name": "streamlease", "rules": quick}]})


class Prometheus:
    """Scrapes and judges twice a second; what it watches is said meanwhile."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._targets: list[dict[str, Any]] = []
        self.port = server_process.free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        (self._directory / "rules.yml").write_text(quick_rules())
        (self._directory / "targets.json").write_text("[]")
        settings = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [
                {"job_name": "streamlease", "file_sd_configs": [{"files": ["targets.json"]}]},
            ],
        }
        (self._directory / "prometheus.yml").write_text(yaml.safe_dump(settings))
        log = self._directory / "prometheus.log"
        words = [
            str(find_prometheus()),
            f"--config.file={self._directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._directory / 'data'}",
            f"--web.listen-address={server_process.HOST}:{self.port}",
            "--log.level=warn",
        ]
        self._process = server_process.spawn(words, log=log, bound=True)
        self._until(lambda: self._get("/-/ready") is not None, log.read_text)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(20)

    def watch(self, **ports: int) -> None:
        """Scrape what listens there from now on, each under the name of its pod; once it was scraped."""
        for pod, port in ports.items():
            self._targets.append({"targets": [f"127.0.0.1:{port}"], "labels": {"pod": pod}})
        new = self._directory / "targets.new"
        new.write_text(json.dumps(self._targets))
        new.rename(self._directory / "targets.json")
        for pod in ports:
            self._until(
                lambda pod=pod: self.value(f'up{{pod="{pod}"}}') == 1, lambda: f"{ports} are not there"
            )

    def firing(self) -> dict[str, list[dict[str, str]]]:
        """The labels of the alerts that fire, by name."""
        found: dict[str, list[dict[str, str]]] = {}
        for alert in (self._get("/api/v1/alerts") or {"data": {"alerts": []}})["data"]["alerts"]:
            if alert["state"] == "firing":
                found.setdefault(alert["labels"]["alertname"], []).append(alert["labels"])
        return found

    def value(self, query: str) -> float | None:
        """The first value of an answer; None if there is none."""
        reply = self._get(f"/api/v1/query?{urllib.parse.urlencode({'query': query})}")
        result = reply["data"]["result"] if reply else []
        return float(result[0]["value"][1]) if result else None

    def until_fires(self, alert: str, **labels: str) -> None:
        """Wait until it fires with these labels."""

        def fires() -> bool:
            return any(labels.items() <= one.items() for one in self.firing().get(alert, []))

        self._until(fires, lambda: f"{alert} {labels} does not fire; these do: {self.firing()}")

    def _until(self, condition: Callable[[], bool], told: Callable[[], str]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, told()
            time.sleep(0.05)

    def _get(self, path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                text = answer.read()
        except (urllib.error.URLError, OSError):
            return None
        return json.loads(text) if text.startswith(b"{") else True
