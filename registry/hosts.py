"""The leader hosts that are alive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from streamlease.registry import keys
from streamlease.streams.catalog.keys import HOSTS
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.streams.redis.scripts import load_script

BEAT_MS = 2000
"""How often a host shows that it is alive."""

SILENCE_MS = 6000
"""After so much silence a host is not counted any more."""

CLIENT = "embedded"
"""The name of the host that a client has in its own process where no leader host is registered."""

_ALIVE = load_script("streamlease.registry", "host_alive")
_HOSTS = load_script("streamlease.registry", "hosts")


class HostInfo(BaseModel):
    """What a leader host says of itself."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    host: str
    name: str = ""
    pid: Annotated[int, Field(ge=0)] = 0
    leaders: Annotated[int, Field(ge=0)] = 0
    drained: bool = False
    """An operator wants it to lead nothing, as long as there are others."""
    since: Annotated[int, Field(ge=0)] = 0
    """When it began, in milliseconds of the clock of Redis; 0: it does not say."""


def is_client(host: str) -> bool:
    """Whether the host with this id is one that a client has in its own process, if it is not registered."""
    return host.startswith(f"{CLIENT}-")


async def beat(redis: AsyncRedis, info: HostInfo) -> int:
    """Show that the host is alive; the number of hosts that are."""
    return await _shown(redis, info.host, info.model_dump_json())


async def leave(redis: AsyncRedis, host: str) -> None:
    """The host takes no more leaders."""
    await _shown(redis, host, "")


async def forget_silent(redis: AsyncRedis) -> None:
    """Remove hosts that were silent for too long, as each host does that shows that it is alive."""
    await _shown(redis, "", "")


async def _shown(redis: AsyncRedis, host: str, description: str) -> int:
    names = [keys.HOSTS_ALIVE, keys.HOSTS_INFO, HOSTS.changes]
    return int(await _ALIVE.run(redis, names, [host, description, SILENCE_MS, HOSTS.told]))


async def alive(redis: AsyncRedis) -> list[HostInfo]:
    """The hosts that are alive."""
    return _described(await _HOSTS.run(redis, [keys.HOSTS_ALIVE, keys.HOSTS_INFO], [SILENCE_MS]))


async def known(redis: AsyncRedis) -> list[HostInfo]:
    """The hosts that are alive, and perhaps some that are silent and not forgotten yet: in one command.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    (reply,) = await ask(redis, [("HGETALL", keys.HOSTS_INFO)])
    return _described(reply)


def _described(reply: Sequence[bytes]) -> list[HostInfo]:
    hosts: list[HostInfo] = []
    for host, description in zip(reply[::2], reply[1::2], strict=True):
        try:
            hosts.append(HostInfo.model_validate_json(description))
        except ValidationError:
            hosts.append(HostInfo(host=host.decode("utf-8", "replace")))
    return hosts
