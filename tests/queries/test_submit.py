"""Programs that are submitted, run, write, and end: real executors and processes."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import textwrap

import pytest

from tests.admin.command import finish, lines_of, until
from tests.queries.executors import KEY, Executors, alive, first_port

pytestmark = pytest.mark.cluster

TALK = """
import socket, sys
import streamlease
query = streamlease.queries.join()
other = query.peers[1 - query.worker]
with socket.create_server(("127.0.0.1", query.port)) as server:
    server.settimeout(30)
    if query.worker == 0:
        with server.accept()[0] as line:
            print("heard", line.recv(100).decode())
    else:
        import time
        while True:
            try:
                with socket.create_connection(other, 1) as line:
                    line.sendall(b"hello from worker 1")
                break
            except OSError:
                time.sleep(0.02)
print(query.name, query.workers, query.conf["color"], sys.argv[1:], open("more.txt").read())
"""

WAITS = """
import os, signal, sys, time
import streamlease
query = streamlease.queries.join()
print("there", flush=True)
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("deaf", flush=True)
if "children" in sys.argv:
    import subprocess
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    print("child", child.pid, flush=True)
time.sleep(600)
"""


def test_two_workers_talk_over_their_ports_and_all_is_told(executors: Executors) -> None:
    executors.start("one", "other")
    program = executors.program(TALK)
    (executors.folder / "more.txt").write_text("more")
    outcome = executors.command(
        "submit", program, "--name", "talk", "--workers", "2", "--conf", "color=blue", "--file",
        str(executors.folder / "more.txt"), "--wait", "--json", "--", "--x", "y",
    )  # fmt: skip
    assert (outcome.code, outcome.err) == (0, "")
    found = outcome.document
    assert (found["name"], found["state"], found["outcome"]) == ("talk", "ended", "done")
    assert [(one["worker"], one["exit"]) for one in found["workers"]] == [(0, 0), (1, 0)]
    assert {one["executor"] for one in found["workers"]} == {"one", "other"}
    said = "talk 2 blue ['--x', 'y'] more\n"
    assert executors.output(found["query"], 0) == f"heard hello from worker 1\n{said}"
    assert executors.output(found["query"], 1) == said
    (item,) = executors.items("queries")
    assert (item["query"], item["state"], item["outcome"]) == (found["query"], "ended", "done")
    until(lambda: not any(one.get("busy") for one in executors.items("executors")))
    again = executors.command("submit", program, "--workers", "2", "--conf", "color=red", "--wait", "--json")
    assert again.code == 1, "its file is missing"
    ports = {one["port"] for one in again.document["workers"]}
    assert ports == {one["port"] for one in found["workers"]}, "given back"
    assert "No such file or directory: 'more.txt'" in executors.output(again.document["query"], 1)


def test_the_programs_of_a_query_are_its_own_in_the_catalog(executors: Executors) -> None:
    executors.start("one")
    executors.command.ok("space", "create", "flights", "--topics", "flights/#")
    query = executors.submit(
        executors.program(
            """
            import asyncio, streamlease
            async def main():
                query = streamlease.queries.join()
                async with streamlease.connect() as client, client.publisher() as publisher:
                    async with client.listen("flights/#"):
                        await publisher.send("flights/a", b"x")
                        print("sent", flush=True)
                        await asyncio.Event().wait()
            asyncio.run(main())
            """.replace("\n            ", "\n")
        )
    )
    until(lambda: "sent" in executors.output(query))
    until(lambda: executors.items("publications") and executors.items("subscriptions"))
    for collection in ("publications", "subscriptions"):
        assert [one["query"] for one in executors.items(collection)] == [query]
    shown = executors.show(query)
    assert (shown["publishes"], shown["reads"]) == (["flights/a"], ["flights/#"])
    said = executors.command.ok("query", "show", query).out.splitlines()
    assert said[-2:] == ["it publishes to flights/a", "it reads flights/#"]
    executors.command.ok("query", "terminate", query)
    executors.until(query, "ended")
    assert executors.show(query)["workers"][0]["exit"] == 143


def test_logs_are_followed_and_terminate_reaches_what_is_deaf_and_what_is_left_behind(
    executors: Executors,
) -> None:
    executors.start("one")
    program = executors.program(WAITS)
    query = executors.submit(program, "--grace", "300ms", "--", "deaf", "children")
    follower = executors.command.start("query", "logs", query, "--follow")
    first = lines_of(follower, 3)
    assert first[:2] == ["0 | there", "0 | deaf"]
    child = int(first[2].split()[-1])
    assert alive(child)
    executors.command.ok("query", "terminate", query)
    assert follower.wait(30) == 0, "a follower ends with the query"
    finish(follower)
    found = executors.show(query)
    assert (found["outcome"], found["workers"][0]["exit"]) == ("terminated", 128 + signal.SIGKILL)
    assert "terminated it" in found["reason"]
    assert not alive(child)
    again = executors.command.ok("query", "terminate", query, "--json").document
    assert again == {name: value for name, value in found.items() if name not in ("publishes", "reads")}, (
        "it has ended already"
    )
    assert (found["publishes"], found["reads"]) == ([], []), "nothing is left of it"


def test_a_worker_that_dies_while_others_wait_ends_all(executors: Executors) -> None:
    executors.start("one")
    program = executors.program(
        "import os, streamlease\n"
        "if os.environ['STREAMLEASE_QUERY_WORKER'] == '1': raise SystemExit(3)\n"
        "try: streamlease.queries.join()\n"
        "except streamlease.errors.SpawningAborted as error: print(error, flush=True); raise\n"
    )
    outcome = executors.command("submit", program, "--workers", "3", "--wait", "--json")
    assert outcome.code == 1
    found = outcome.document
    assert found["outcome"] == "aborted"
    assert found["reason"].startswith("worker 1 exited with 3 when ")
    assert found["workers"][1]["exit"] == 3
    assert all(one["exit"] for one in found["workers"])


def test_a_program_that_hangs_in_spawning_is_ended(executors: Executors) -> None:
    executors.start("one")
    program = executors.program("import time; time.sleep(600)")
    outcome = executors.command(
        "submit", program, "--workers", "2", "--spawn-timeout", "1s", "--wait", "--json"
    )
    assert (outcome.code, outcome.document["outcome"]) == (1, "aborted")
    assert outcome.document["reason"] == (
        "not all workers have joined in time: missing 0 on one, 1 on one: "
        "each worker of several calls streamlease.queries.join()"
    )
    assert [one["exit"] for one in outcome.document["workers"]] == [143, 143]


def test_a_long_log_is_bounded_and_says_what_is_gone(executors: Executors) -> None:
    executors.start("one")
    program = executors.program("for n in range(40_000): print(f'{n:06d}' + 'x' * 57)")
    outcome = executors.command("submit", program, "--wait", "--json")
    assert outcome.code == 0
    told = executors.command("query", "logs", outcome.document["query"])
    assert told.err.endswith(" bytes of worker 0 are not kept any more\n")
    lines = told.out.splitlines()
    assert lines[-1].startswith("0 | 039999x")
    assert 10_000 < len(lines) < 20_000


def test_the_environment_of_a_program_has_nothing_of_the_executors_own(executors: Executors) -> None:
    executors.start("one", more=("--pass", "WANTED"), WANTED="yes", SECRET_THING="no")
    program = executors.program(
        textwrap.dedent(
            """
            import os, sys
            from pathlib import Path
            seen, pid = [], os.getpid()

            def told(pid, one):
                try:
                    return Path(f"/proc/{pid}/{one}").read_text()
                except PermissionError:
                    return ""  # nobody but root sees that of an executor

            while "streamlease.admin" not in "".join(seen[-1:]):
                seen.append(told(pid, "environ") + told(pid, "cmdline"))
                pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            found = sys.argv[1][::-1] in "".join(seen)
            print(len(seen), found, os.environ["WANTED"], "SECRET_THING" in os.environ)
            """
        )
    )
    outcome = executors.command("submit", program, "--wait", "--json", "--", KEY[::-1])
    assert executors.output(outcome.document["query"]) == "3 False yes False\n", "program, guard and executor"


def test_a_file_on_the_executor_and_bad_input(executors: Executors) -> None:
    program = executors.program("print('ran')")
    assert "there is no executor: start one" in executors.refused("submit", program).err
    executors.start("one", more=("--slots", "1"))
    outcome = executors.command("submit", f"file://{program}", "--wait", "--json")
    assert outcome.code == 0
    assert executors.output(outcome.document["query"]) == "ran\n"
    nothing = f"file://{executors.folder}/nothing.py"
    assert "put its hash behind it" in executors.refused("submit", nothing).err
    gone = executors.command("submit", f"{nothing}#sha256={'0' * 64}", "--wait", "--json")
    assert (gone.code, gone.document["outcome"]) == (1, "aborted")
    assert "worker 0 cannot be started: " in gone.document["reason"]
    large = executors.folder / "large.bin"
    with large.open("wb") as file:
        file.truncate(64 * 1024 * 1024)
    for words, says in (
        ((program, "--on", "oned"), "there is no executor 'oned': the nearest names are one"),
        ((program, "--workers", "2"), "no free slot for worker 1: 2 workers need one each"),
        ((program, "--workers", "0"), "--workers is 0"),
        ((program, "--label", "gpu=yes"), "no executor has the labels gpu=yes"),
        ((program, "--label", "gpu"), "--label 'gpu': give NAME=VALUE"),
        ((program, "--placement", "best"), "--placement is 'best'"),
        ((program, "--placement", "pinned"), "--placement pinned needs to know where"),
        ((program, "--file", str(large)), "larger than 64 MiB"),
        ((program, "--file", program), "two files of the job are called job.py"),
        ((program, "--file", "nothing"), "there is no file 'nothing'"),
        (("file://../x.py",), "is no place"),
        ((program, "--name", "a b"), "is not a name"),
    ):
        assert says in executors.refused("submit", *words).err, words
    assert "is no query" in executors.refused("query", "show", "x").err
    assert "there is no query" in executors.refused("query", "show", "0" * 16).err
    assert "already" in _second_of_a_name(executors)
    assert "no submit key" in executors.command("submit", program, STREAMLEASE_SUBMIT_KEY="").err
    join = "import streamlease; streamlease.queries.join()"
    alone = executors.command.environment | {"PYTHONWARNINGS": "ignore"}
    ran = subprocess.run([sys.executable, "-c", join], env=alone, capture_output=True, text=True, check=False)
    assert "no executor has started this program: run it with 'streamlease submit'" in ran.stderr


def test_where_it_runs_what_is_missing_and_who_never_joins(executors: Executors) -> None:
    port = str(first_port(0))
    executors.start("one", "other", more=("--ports", f"{port}-{port}"))
    program = executors.program("print('ran')")
    for name in ("one", "other", "one"):  # --on alone
        done = executors.command("submit", program, "--on", name, "--wait", "--json")
        (worker,) = done.document["workers"]
        assert (done.code, worker["executor"]) == (0, name)
    words = ("submit", program, "--workers", "2", "--on", "one", "--placement", "random")
    refused = executors.refused(*words).err
    assert "no free port for worker 1: 2 workers need one each, and all are taken" in refused
    assert f"one: {port}-{port}" in refused
    spread = executors.command("submit", program, "--workers", "2", "--wait", "--json")
    assert (spread.code, spread.document["outcome"]) == (1, "aborted")
    assert "each worker calls streamlease.queries.join()" in spread.document["reason"]
    assert sorted(one["state"] for one in executors.items("queries")) == ["ended"] * 4, (
        "what is refused is none"
    )


def test_a_port_that_another_program_has_is_taken_by_no_worker_as_long_as_it_has_it(
    executors: Executors,
) -> None:
    executors.start("one")
    port = first_port(0)
    program = executors.program("import streamlease; print(streamlease.queries.join().peers)")
    words = ("submit", program, "--workers", "2", "--wait", "--json")
    with socket.create_server(("", port)):
        refused = executors.command(*words)
        assert (refused.code, refused.document["outcome"]) == (1, "aborted")
        assert refused.document["reason"] == (
            f"worker 0 cannot be started: port {port} is taken by another program of this machine: "
            f"submit the job again, it gets another"
        )
        until(lambda: executors.items("executors")[0].get("strange") == [port])
        done = executors.command(*words)
        assert done.document["outcome"] == "done", done
        assert [one["port"] for one in done.document["workers"]] == [port + 1, port + 2]
    until(lambda: "strange" not in executors.items("executors")[0])
    again = executors.command(*words)
    assert [one["port"] for one in again.document["workers"]] == [port, port + 1]


def _second_of_a_name(executors: Executors) -> str:
    outcome = executors.command("executor", "--name", "one", "--lease", "1s")
    waits, refused = outcome.err.splitlines()
    assert "waits for its name" in waits
    return refused
