"""Files of jobs in Redis, by their content: in pieces, for a day, or as long as somebody runs them."""

from __future__ import annotations

import hashlib

from streamlease.protocol.errors import QueryRefused
from streamlease.queries.core.signed_orders import JobFile
from streamlease.queries.keys import file_chunks
from streamlease.streams.redis.connection import Redis, ask
from streamlease.streams.redis.scripts import load_script

CHUNK_BYTES = 1024 * 1024
LASTS_SECONDS = 86_400

_DIGESTS = load_script("streamlease.queries", "chunk_digests")


def file_of(name: str, content: bytes) -> JobFile:
    """The description of a file that travels through Redis."""
    return JobFile(name=name, sha256=hashlib.sha256(content).hexdigest(), size=len(content))


async def upload(redis: Redis, content: bytes) -> None:
    """Put a file there; the pieces that are there, and are right, are not sent again.

    The digests are for that alone: whoever runs the file compares its SHA-256 with what was signed.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
    """
    key = file_chunks(hashlib.sha256(content).hexdigest())
    chunks = [content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES)] or [b""]
    await ask(redis, [("EXPIRE", key, LASTS_SECONDS)])
    for number, chunk in enumerate(chunks):
        (found,) = await _DIGESTS.run(redis, [key], [number])
        if found.decode() != hashlib.sha1(chunk, usedforsecurity=False).hexdigest():
            await ask(redis, [("HSET", key, number, chunk), ("EXPIRE", key, LASTS_SECONDS)])


async def keep(redis: Redis, files: list[JobFile]) -> None:
    """Have files last for another day."""
    wanted = [("EXPIRE", file_chunks(one.sha256), LASTS_SECONDS) for one in files if not one.uri]
    if wanted:
        await ask(redis, wanted)


async def download(redis: Redis, file: JobFile) -> bytes:
    """A file that travels through Redis.

    Raises:
        QueryRefused: it is not there any more, or is not what was signed.
        StoreUnavailable, StoreRefused, Indefinite.
    """
    key = file_chunks(file.sha256)
    content = bytearray()
    for number in range(max(1, -(-file.size // CHUNK_BYTES))):
        (chunk,) = await ask(redis, [("HGET", key, number)])
        if chunk is None:
            raise QueryRefused(f"the file {file.name} is not in Redis any more: submit the job again")
        content += chunk
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        raise QueryRefused(
            f"the file {file.name} in Redis is not the one that was signed: it has the hash {found[:12]}..., "
            f"not {file.sha256[:12]}...: look who else writes sl:* (docs/redis.md)"
        )
    return bytes(content)
