"""Publishing under a key of the client: the same answer for an hour, and nothing twice.

A record in Redis says who does it, and afterwards the answer. The messages are appended by a publisher whose
id comes from the key, so their streams take them once, whoever sends them. That is what holds if the one who
began died, or stood still, between the append and the record.

* Only the owner publishes. Another one waits, and takes over when the owner was silent for longer than
  publishing can take. It appends under the same id: what was there already is a duplicate, with its offsets.
* The owner has the id forgotten only if it still was the owner when the answer was kept. After a take-over
  the streams remember it for a day, for the former owner may wake up.
* A message without a time has that of the first request, which the record has: so a repetition does not name
  another one than what stands in the log.
* If the space got new streams between a beginning that died and its repetition, the former streams are asked
  what they took. Where that is a part only, the answer is ``Indefinite``.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from streamlease.protocol.errors import Indefinite, InvalidInput, StoreUnavailable, StreamleaseError
from streamlease.protocol.ids import StreamId, random_token
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.publish.publisher import Publisher
from streamlease.streams.publish.routes import Seen, unseen
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.redis.scripts import load_script
from streamlease.streams.spaces.spaces import Space, SpaceStore

KEPT_MS = 3_600_000
DELIVERY_SECONDS = 15.0
OWNED = 4.0
"""For so many times as long as publishing is tried, it is the owner's: with what comes before and after."""

LONGEST_WAIT = 5.0
LOOK_SECONDS = 0.1
MOST_BYTES = 4 * 1024 * 1024
"""Of what is published under one key: each stream gets one entry of it."""

LONGEST_KEY = 255

TOLD_SECONDS = 60.0
"""How often it is told, at most, that a topic is published to: its space may have been made anew."""

MOST_TOLD = 10_000
"""Topics of which it is remembered."""

_SCRIPT = load_script("streamlease.streams.publish", "answer_once")

Taken = Mapping[StreamId, tuple[int, int]]
Publish = Callable[[Publisher, int], Awaitable[bytes]]
Found = Callable[[Space, Taken, int], bytes | None]


class KeyReused(InvalidInput):
    """The key of a client names something else already."""


class _Claim(NamedTuple):
    """It is this one's to publish; `taken_over`: somebody else had begun, at `began`."""

    taken_over: bool
    began: int


class _Telling:
    """Tells of a topic now and then: to the publisher of a request all topics are new."""

    def __init__(self, shown: Seen) -> None:
        self._shown = shown
        self._at: dict[tuple[str, str], float] = {}

    def __call__(self, topic: str, space: str) -> None:
        now = time.monotonic()
        if now - self._at.get((topic, space), -TOLD_SECONDS) < TOLD_SECONDS:
            return
        if len(self._at) >= MOST_TOLD:
            self._at.clear()
        self._at[topic, space] = now
        self._shown(topic, space)


class KeptAnswers:
    """The answers of one Redis.

    Args:
        seconds: for which publishing is tried. If the owner died, another one takes over after `OWNED` times
            as long.
        shown: told of each topic, and its space.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        spaces: SpaceStore,
        seconds: float = DELIVERY_SECONDS,
        shown: Seen = unseen,
    ) -> None:
        self._seconds = seconds
        self._told = _Telling(shown)
        self._redis = redis
        self._spaces = spaces

    async def once(
        self, who: str, key: str, content: bytes, topic: str, now: int, publish: Publish, found: Found
    ) -> bytes:
        """What `publish` answers, now or the first time.

        Args:
            who: the client to whom the key belongs.
            content: what is published, all of it.
            now: microseconds since 1970.
            publish: does it by the publisher that it is given, each stream at most one entry, at the time (as
                `now`) that it is given.
            found: the answer, if what streams of former generations took (first offset, count) is all of it;
                it is given their space, and the time.

        Raises:
            KeyReused: the key named something else within the last hour.
            StoreUnavailable: another request with that key is under way.
            Indefinite: nobody knows whether all of it was published.
            What `publish` raises.
        """
        if not 1 <= len(key) <= LONGEST_KEY or not key.isascii() or not key.isprintable():
            raise InvalidInput(f"the Idempotency-Key is {ascii(key)[:80]}: give 1 to 255 ASCII characters")
        name = hashlib.sha256(f"{len(who)} {who} {key}".encode()).hexdigest()[:40]
        record, owner = f"sl:{{o:{name}}}:once", random_token()
        print_of = hashlib.sha256(f"{topic}\0".encode() + content).hexdigest()
        claim = await self._claim(record, owner, print_of, key, now)
        if isinstance(claim, bytes):
            return claim
        try:
            answer = await self._former(f"~{name}", topic, found, claim.began) if claim.taken_over else None
            publisher = Publisher(
                self._redis, spaces=self._spaces, token=lambda: name, max_batch_messages=1 << 20,
                max_batch_bytes=2 * MOST_BYTES, delivery_timeout=self._seconds, shown=self._told,
            )  # fmt: skip
            publisher.forgotten = False
            try:
                answer = answer or await publish(publisher, claim.began)
                if await self._settled(record, owner, answer):
                    publisher.forgotten = not claim.taken_over
            finally:
                await publisher.close()
        except StreamleaseError:
            await self._run(record, "let_go", owner)
            raise
        return answer

    async def _claim(self, record: str, owner: str, print_of: str, key: str, now: int) -> _Claim | bytes:
        """What is to be done; or the answer."""
        ends = asyncio.get_running_loop().time() + LONGEST_WAIT
        owned = max(1, round(OWNED * self._seconds * 1000))
        while True:
            what, *more = await self._run(record, "claim", owner, print_of, owned, KEPT_MS, now)
            if what == b"mine":
                return _Claim(bool(more[0]), int(more[1]))
            if what == b"answer":
                answer: bytes = more[0]
                return answer
            if what == b"other":
                raise KeyReused(
                    f"the Idempotency-Key {ascii(key)[:80]} named another request within the last hour: "
                    f"take a new key for each request, and the same one to repeat it"
                )
            if asyncio.get_running_loop().time() > ends:
                raise StoreUnavailable("a request with this Idempotency-Key is under way: repeat it later")
            await asyncio.sleep(LOOK_SECONDS)

    async def _former(self, publisher: str, topic: str, found: Found, began: int) -> bytes | None:
        """What came of a beginning, if the space has other streams since then."""
        space = await self._spaces.for_topic(topic)
        former = [stream for stream in space.streams() if stream.generation < space.newest.number]
        taken = await AsyncLog(self._redis).taken_of(publisher, former)
        if not taken:
            return None
        answer = found(space, taken, began)
        if answer is None:
            raise Indefinite(
                f"part of it was published before space {space.name} got other streams, the rest was not: "
                f"look what is there, and publish the rest under another key"
            )
        return answer

    async def _settled(self, record: str, owner: str, answer: bytes) -> bool:
        return bool((await self._run(record, "settle", owner, answer, KEPT_MS))[0] == b"kept")

    async def _run(self, record: str, *args: Any) -> Any:
        return await _SCRIPT.run(self._redis, [record], args)
