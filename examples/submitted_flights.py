"""Two Spark queries and a publisher run as submitted queries; the executor of one of them is killed on the
way.

Run: ``python -m streamlease.examples.submitted_flights URL FOLDER``. It starts three executors, submits the
publisher and the query of the demo (twice, with ``--restart``), follows the log of the publisher, kills an
executor with one of the queries once both have written something, and prints what became of it. The query
that was lost is placed anew, and goes on from its checkpoint: every flight arrives once.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from streamlease.admin.demo import flight_query
from streamlease.examples.command_line import FOLDER, URL, start

STREAMS = 6
SLICE = 100
"""Flights that are published together, with a pause behind them."""


def publish(count: int) -> None:
    """The publisher: it runs on an executor, too."""
    from streamlease import blocking, queries
    from streamlease.admin.demo.flights import load

    query = queries.join()
    rows = load().table.slice(0, count).to_pylist()
    with blocking.connect(query.redis) as client, client.publisher() as publisher:
        for at in range(0, count, SLICE):
            for row in rows[at : at + SLICE]:
                topic = f"flights/{row['origin']}/{row['dest']}"
                publisher.submit(topic, json.dumps(row).encode(), key=str(row["tailnum"]).encode())
            publisher.flush()
            print(min(at + SLICE, count), "flights are published", flush=True)  # noqa: T201 - its log
            time.sleep(0.25)


class Play:
    """The executors, and the command that is used."""

    def __init__(self, url: str, folder: Path) -> None:
        key = os.environ.get("STREAMLEASE_SUBMIT_KEY") or secrets.token_hex(16)
        self._env = {**os.environ, "STREAMLEASE_REDIS_URL": url, "STREAMLEASE_SUBMIT_KEY": key}
        self._folder = folder
        self._executors: dict[str, subprocess.Popen[bytes]] = {}
        self._follower: subprocess.Popen[bytes] | None = None

    def command(self, *words: str, needed: bool = True) -> Any:
        """What ``streamlease WORDS --json`` answers."""
        command = (sys.executable, "-m", "streamlease.admin", *words)
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, check=False)
        answer = json.loads(done.stdout) if done.stdout else {"error": {"message": done.stderr}}
        if "error" in answer and needed:
            raise SystemExit(answer["error"]["message"])
        return answer

    def start_executor(self, name: str) -> None:
        words = [sys.executable, "-m", "streamlease.admin", "executor", "--name", name, "--slots", "2"]
        with (self._folder / f"executor-{name}.log").open("ab") as log:
            self._executors[name] = subprocess.Popen([*words, "--lease", "6s"], env=self._env, stderr=log)

    def follow(self, query: str) -> Path:
        """The file into which the log of a query comes, as it is written."""
        file = self._folder / f"log-{query}"
        command = (sys.executable, "-m", "streamlease.admin", "query", "logs", query, "--follow")
        with file.open("wb") as log:
            self._follower = subprocess.Popen(command, env=self._env, stdout=log)
        return file

    def followed(self) -> int:
        """Wait for the end of the log that is followed; 0: it was read to its end."""
        assert self._follower is not None
        return self._follower.wait(60)

    def kill_executor(self, name: str) -> None:
        process = self._executors.pop(name)
        process.kill()
        process.wait()

    def close(self) -> None:
        if self._follower is not None:
            self._follower.kill()
            self._follower.wait()
        for process in self._executors.values():
            process.terminate()
        for process in self._executors.values():
            process.wait()


def until(condition: Callable[[], Any], seconds: float = 300.0) -> Any:
    """What the condition gives, once it is true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise SystemExit(f"not within {seconds:g} s: {condition.__doc__}")
        time.sleep(0.5)
    return found


def arrived(out: Path) -> list[tuple[str, int]]:
    """Stream and offset of all that was written."""
    found: list[tuple[str, int]] = []
    for file in out.glob("cut=*/*.parquet"):
        table = pq.ParquetFile(file).read(columns=["stream", "offset"])
        found += zip(*(column.to_pylist() for column in table.columns), strict=True)
    return found


def run(url: str, folder: str, count: int = 20_000) -> dict[str, Any]:
    """Play it; what came of it."""
    place, play = Path(folder), Play(url, Path(folder))
    out = place / "out"
    try:
        for name in ("east", "west", "north"):
            play.start_executor(name)

        def executors() -> bool:
            """three executors are there"""
            return len(play.command("catalog", "executors", "--json")["items"]) == 3

        until(executors)
        play.command(
            "space", "create", "flights", "--topics", "flights/#", "--streams", str(STREAMS), "--json"
        )
        queries = [
            play.command(
                "submit", "--name", f"query-{n}", "--restart", "--on", name, "--on", "north",
                "--placement", "random", "--spawn-timeout", "5m", "--json",
                flight_query.__file__, "--", str(out), str(place / f"checkpoint-{n}"),
            )["query"]
            for n, name in enumerate(("east", "west"))
        ]  # fmt: skip
        publisher = play.command(
            "submit", "--name", "publisher", "--json", __file__, "--", "publish", str(count)
        )

        log = play.follow(publisher["query"])

        def tells() -> bool:
            """the log of the publisher says that flights are published"""
            return "flights are published" in log.read_text()

        until(tells)

        def both_hold() -> bool:
            """both queries hold streams, and have written something"""
            group = play.command("group", "describe", flight_query.SUBSCRIPTION, "--json", needed=False)
            owners = {one["owner"] for one in group.get("streams", ())} - {None}
            return len(owners) >= 2 and bool(arrived(out))

        until(both_hold)
        lost = play.command("query", "show", queries[0], "--json")
        play.kill_executor(lost["workers"][0]["executor"])

        def followed() -> Any:
            """the query that was lost is placed anew"""
            following = play.command("query", "show", queries[0], "--json")["next"]
            if following is None or play.command("query", "show", following, "--json")["state"] != "running":
                return None
            return following

        following = until(followed)

        def all_there() -> bool:
            """all flights have arrived"""
            return len({*arrived(out)}) >= count

        until(all_there)
        for query in (following, queries[1]):
            shown = play.command("query", "show", query, "--json")
            while shown["state"] != "ended":
                if shown["next"] is None:
                    play.command("query", "terminate", query, "--json")
                time.sleep(0.5)
                shown = play.command("query", "show", query, "--json")
        found = arrived(out)
        play.followed()
        return {
            "published": count,
            "log_ends": log.read_text().splitlines()[-1],
            "arrived": len(found),
            "twice": len(found) - len({*found}),
            "lost": play.command("query", "show", queries[0], "--json")["reason"],
            "placed_anew": play.command("query", "show", following, "--json")["workers"][0]["executor"],
            "publisher": play.command("query", "show", publisher["query"], "--json")["outcome"],
        }
    finally:
        play.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["publish"]:
        publish(int(sys.argv[2]))
    else:
        start(lambda url, folder: print(json.dumps(run(url, folder), indent=2)), URL, FOLDER)  # noqa: T201
