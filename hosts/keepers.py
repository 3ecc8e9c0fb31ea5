"""The keepers of a leader host: one for each space with epochs that this host has the claim of.

::

    spaces with epochs --claim of each--> keeper --turn, whenever there is a line--> boundaries
     |                                       `-- look, now and then --> silent publishers are given up
     `-- looked for every second, and with each definition that is pushed

The claim saves work and elects; what protects the boundaries is its term, which every decision and record of
a keeper compares (`streams/epochs/keeping.py`). A keeper that meets an error it does not understand begins
again from what stands in Redis.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from streamlease.hosts.claim import Claim, Claims
from streamlease.hosts.hand_out import UNANSWERED
from streamlease.hosts.signals.exposition import KeptFacts
from streamlease.protocol.epochs.antichains import Antichain
from streamlease.protocol.errors import Fenced, NotDurable, StreamleaseError
from streamlease.protocol.seldom import Seldom
from streamlease.registry import keys
from streamlease.streams.epochs.core.standing import standing
from streamlease.streams.epochs.keeping import Keeper
from streamlease.streams.epochs.news import EpochNews
from streamlease.streams.epochs.stored import parse_state, read_frontier_since, state_command
from streamlease.streams.log.keys import SPACE_NEWS
from streamlease.streams.log.times import server_time
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.streams.spaces.spaces import Space, SpaceStore
from streamlease.streams.tasks import Supervisor, stop

log = logging.getLogger(__name__)

ROUND_SECONDS = 1.0
"""How often claims are renewed, and spaces looked for, whatever is pushed."""

LEAST_SECONDS = 0.02

LOOK_SECONDS = 0.25
"""After so long a keeper looks for lines that were not pushed, if the push may have failed."""

TRUSTED_SECONDS = 2.0
"""The same while the push connection lives."""

TIDY_SECONDS = 60.0
AGAIN_SECONDS = 0.2
FAULTY_SECONDS = 1.0


@dataclass(slots=True)
class _Kept:
    space: Space
    claim: Claim
    task: asyncio.Task[None] | None = None
    keeper: Keeper | None = None
    """That of this host; None: it has not begun."""
    lower: Antichain = ()
    since: int = 0
    """Since when, by the own clock, `lower` is the lower frontier."""

    def begin(self, keeper: Keeper, since: int) -> None:
        """`keeper` has begun."""
        self.keeper, self.lower, self.since = keeper, keeper.fold.lower, since

    def turned(self, now: int) -> None:
        """The keeper may have gone on."""
        lower = self.lower if self.keeper is None else self.keeper.fold.lower
        if lower != self.lower:
            self.lower, self.since = lower, now


class Keepers:
    """Those of one host. `round` again and again; then `close`.

    Args:
        clock: this process' own clock, in milliseconds.
        spaces: those of the whole host, which reads them anew when a definition is pushed; None: its own.
    """

    def __init__(
        self, redis: AsyncRedis, host: str, clock: Callable[[], int], spaces: SpaceStore | None = None
    ) -> None:
        self._redis = redis
        self._seldom = Seldom(log)
        self._host = host
        self._clock = clock
        self._spaces = spaces or SpaceStore(redis)
        self._tasks = Supervisor(f"host {host}, keepers", _told)
        self._news = EpochNews(redis, self._tasks)
        self._claims = Claims(redis, host, clock)
        self._kept: dict[str, _Kept] = {}
        """By the name of the space; also those of which other hosts have the claim."""
        self._defined = asyncio.Event()

    @property
    def spaces(self) -> list[str]:
        """The spaces that this host keeps."""
        return sorted(name for name, kept in self._kept.items() if kept.task is not None)

    def watch_definitions(self) -> None:
        """From now on hear of each space that is made, changed or deleted: on a connection of its own."""
        self._news.watch_channel(SPACE_NEWS, self._defined)

    async def until_defined(self) -> None:
        """Wait for the next round: until there is something new, or the claims are to be renewed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ROUND_SECONDS):
                await asyncio.sleep(LEAST_SECONDS)  # many definitions that come together are one round
                await self._defined.wait()

    def facts(self) -> list[KeptFacts]:
        """What metrics show of the spaces that this host keeps."""
        now, found = self._clock(), []
        for name, kept in sorted(self._kept.items()):
            if kept.task is not None and kept.keeper is not None:
                kept.turned(now)  # it may be in the middle of a turn
                at = standing(kept.keeper.fold)
                seconds = max(0.0, (now - kept.since) / 1000)
                found.append(KeptFacts(name, at.publishers, len(at.held_back), at.waiting, seconds))
        return found

    async def round(self) -> None:
        """Renew the claims, and begin or end keepers.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: try again.
        """
        if self._defined.is_set():
            self._defined.clear()
            self._spaces.forget()
        found = {one.name: one for one in (await self._spaces.recent()).listed if one.epochs}
        for name, kept in [*self._kept.items()]:
            if name not in found:
                await self._stop(kept)
                await ask(self._redis, [("UNLINK", keys.leader(_claim(name)))])
                del self._kept[name]
            elif found[name] != kept.space:
                await self._stop(kept)
                # A new term fences what is on its way, and a claim that was given up can be had at once.
                await kept.claim.give_up()
                kept.space = found[name]
        for name, space in found.items():
            if name not in self._kept:
                claim = Claim(self._redis, _claim(name), self._host, self._clock, ROUND_SECONDS)
                self._kept[name] = _Kept(space, claim)
        failed = await self._claims.get(kept.claim for kept in self._kept.values())
        for name, kept in self._kept.items():
            if kept.claim.term is None:
                await self._stop(kept)
            elif kept.task is None or kept.task.done():
                kept.task = self._tasks.start(f"keeper of {name}", self._keep(kept))
        for error in failed.values():
            raise error

    async def leave(self) -> None:
        """End all keepers for now, and let other hosts have them at once; the next round begins anew.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: try again.
        """
        for name, kept in [*self._kept.items()]:
            await self._stop(kept)
            await kept.claim.give_up()
            del self._kept[name]

    async def close(self) -> None:
        """End all keepers, and let other hosts have them at once.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: the claims expire by themselves.
        """
        await self._tasks.close()
        for kept in self._kept.values():
            await kept.claim.give_up()

    async def _stop(self, kept: _Kept) -> None:
        task, kept.task, kept.keeper = kept.task, None, None
        if task is not None:
            await stop([task])

    async def _keep(self, kept: _Kept) -> None:
        """Keep one space as long as this host has its claim."""
        space, claim = kept.space, kept.claim
        bell = self._news.watch(space.name)
        try:
            while claim.term is not None:
                try:
                    await self._keep_under(kept, claim.term, bell)
                except Fenced as error:
                    log.warning("keeper of space %s: %s", space.name, error)
                    await self._go_above(space.name, claim)
                    return
                except (*UNANSWERED, NotDurable) as error:
                    self._seldom.warning("keeper of space %s: %s", space.name, error)
                    await asyncio.sleep(AGAIN_SECONDS)
                except StreamleaseError as error:
                    self._seldom.error("keeper of space %s: %s", space.name, error)
                    await asyncio.sleep(FAULTY_SECONDS)
        finally:
            self._news.forget(space.name, bell)

    async def _go_above(self, space: str, claim: Claim) -> None:
        """Have a claim above the newest term of the space: Redis lost that of the claim, as in a failover."""
        with contextlib.suppress(*UNANSWERED):  # the next round is fenced as well
            (reply,) = await ask(self._redis, [state_command(space)])
            if claim.term is not None and claim.term < (newest := parse_state(space, reply).term):
                await claim.give_up(below=newest)

    async def _keep_under(self, kept: _Kept, term: int, bell: asyncio.Event) -> None:
        space, claim = kept.space, kept.claim
        keeper = Keeper(
            self._redis,
            space.name,
            space.epochs,
            space.streams(),
            term,
            self._clock,
            durability=space.promised,
            timeout=space.epochs_timeout_ms if space.epochs_on_loss == "abort" else None,
        )
        await keeper.begin()
        kept.begin(keeper, await self._frontier_since(space.name))
        looked_at = tidied_at = self._clock()
        while claim.term == term:
            bell.clear()
            while await keeper.turn():
                pass
            kept.turned(self._clock())
            if self._clock() - looked_at >= space.epochs_timeout_ms / 10:
                looked_at = self._clock()
                for gone in await keeper.look():
                    log.warning(
                        "space %s: publisher %s was silent for too long; what it had not given up is dropped",
                        space.name,
                        gone.name,
                    )
            if self._clock() - tidied_at >= TIDY_SECONDS * 1000:
                await keeper.tidy()
                tidied_at = self._clock()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience(space)):
                    await bell.wait()

    def _patience(self, space: Space) -> float:
        """For how many seconds a keeper waits for news before it looks by itself."""
        if not self._news.trusted:
            return LOOK_SECONDS
        return max(LOOK_SECONDS, min(TRUSTED_SECONDS, space.epochs_timeout_ms / 10_000))

    async def _frontier_since(self, space: str) -> int:
        """Since when, by the own clock, the lower frontier is where it is; now, if no publisher ever came."""
        since, now = await read_frontier_since(self._redis, space), await server_time(self._redis)
        return self._clock() - max(0, now // 1000 - (now // 1000 if since is None else since))


def _claim(space: str) -> str:
    return f"{keys.KEEPER}{space}"


def _told(name: str, error: StreamleaseError) -> None:
    """The supervisor has told the log; the next round begins another keeper."""
