"""Leadership of a shared subscription: one record in Redis, changed only under preconditions.

::

    nobody --claim--> led --renew--> led --resign--> nobody
                       |
                       +-- not renewed for a ttl --take over--> led by another, term + 1
                       +-- heir named: for some moments only it claims what is resigned

The term is the fencing token. It rises with every new leadership and stays in the record when the leader
resigns; every durable write of a leader compares it in the same script as the write. So two hosts may both
believe that they lead, but only the one with the newest term can write: clocks cost liveness, never safety.
A host that leads many renews them together, by a pulse (`streamlease.registry.pulses`).

**A term belongs to one lineage of the data.** A lineage is one unbroken past of what a server holds. A Redis
that was restarted, or a replica that was promoted, may lack writes that were acknowledged, terms among them:
it begins another lineage, which it names by a replication id (``master_replid``) that no server had before.
So the record names the id under which its term was issued, and a claim that finds another one, or that hears
of a higher term than the record has, does not add 1 but a *leap*: a random number from 2^20 up to 2^36.
Between two leaps the numbers are dense; so a term that was lost is not issued again even if nobody alive has
seen it, unless two lineages draw almost the same number. Every write of a leader compares the id; one that
finds itself in another lineage heals the journal from its memory and gives up its term. The record keeps the
lineage of the declaration too: a group without any term leaps if that is another one, for its first term may
be what was lost. Lease epochs begin
above the term of their lineage (`streamlease.leader.core.healing`), so the same holds for them. A server that
does not tell its replication id (none of those that are supported) gives plain terms: then only what somebody
has seen is not issued again.

A candidate takes over only when the record is expired by the clock of Redis *and* has not changed for a
whole ttl of the candidate's own clock (`LeaderWatch`), so a jump of either clock alone deposes nobody. A
record that was renewed more than a ttl in the future is expired as well: the clock of Redis went back. Not
promised: that the deposed leader knows it before its next write.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from redis.exceptions import ResponseError

from streamlease.protocol.errors import InvalidOption, StreamleaseError, UnknownGroup
from streamlease.protocol.ids import LEAST_LEAP, LONGEST_LEAP
from streamlease.registry import keys, pulses
from streamlease.registry.pulses import Pulse
from streamlease.streams.redis.connection import AsyncRedis, Command, ask_each, refusal
from streamlease.streams.redis.scripts import load_script, run_each

_CLAIM = load_script("streamlease.registry", "claim")
_TAKE_OVER = load_script("streamlease.registry", "take_over")
_RENEW = load_script("streamlease.registry", "renew")
_RESIGN = load_script("streamlease.registry", "resign")
_WITNESS = load_script("streamlease.registry", "witness")
_HEIR = load_script("streamlease.registry", "heir")


class LineageChanged(StreamleaseError):
    """Redis goes on with another lineage of the data: the term that was issued before is over."""


def leap() -> int:
    """By how much a term rises in a new lineage."""
    return random.randrange(LEAST_LEAP, LONGEST_LEAP)


@dataclass(frozen=True, slots=True)
class LeadershipConfig:
    """How long a leadership lasts without renewal, and how often it is renewed, in milliseconds.

    Raises:
        InvalidOption: the renewal does not fit at least twice into the ttl.
    """

    ttl: int = 4000
    renew_interval: int = 1000

    def __post_init__(self) -> None:
        if self.renew_interval <= 0 or self.ttl < 2 * self.renew_interval:
            raise InvalidOption(
                f"leader ttl is {self.ttl} ms and renew interval {self.renew_interval} ms: "
                f"the ttl must be at least twice the interval"
            )


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """The leadership record as read at one moment. Times are milliseconds of the Redis clock."""

    term: int
    host: str
    mailbox: str
    renewed_at: int
    """By itself, or by the pulse that keeps it."""
    ttl: int
    read_at: int
    damage: str = ""
    """What is wrong with it, if it cannot be read: then nobody is known to lead, and nobody may begin to."""
    written_at: int = 0
    """When it was renewed by itself."""
    pulse: Pulse | None = None
    """What keeps it; None: nothing else does."""

    @property
    def held(self) -> bool:
        """Whether somebody leads, expired or not."""
        return bool(self.host)

    @property
    def expired(self) -> bool:
        """Whether the leader has not renewed in time, by the clock of Redis.

        Also if it renewed far in the future: the clock went back since, and who lives renews by the new one.
        """
        return self.held and abs(self.read_at - self.renewed_at) >= self.ttl

    @property
    def leader(self) -> str | None:
        """The host that leads now; None: nobody does, or not in time."""
        return self.host if self.held and not self.expired else None

    def kept_by(self, given: Mapping[Pulse, int]) -> LeaderRecord:
        """The same, renewed when its pulse was given; if it was not, as it is written."""
        return replace(self, renewed_at=given.get(self.pulse, self.written_at)) if self.pulse else self


NOBODY = LeaderRecord(term=0, host="", mailbox="", renewed_at=0, ttl=0, read_at=0)


async def read(redis: AsyncRedis, group: str) -> LeaderRecord:
    """The leadership record of the group with identity `group`; `NOBODY` if it never had a leader.

    Raises:
        StoreUnavailable: Redis does not answer.
        StreamleaseError: the record is damaged.
    """
    record = (await read_all(redis, [group]))[group]
    if record.damage:
        raise StreamleaseError(record.damage)
    return record


async def read_all(redis: AsyncRedis, groups: Sequence[str]) -> dict[str, LeaderRecord]:
    """The leadership records of `groups`; damaged ones too, which say so.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    *found, time = await ask_each(redis, [*map(record_command, groups), ("TIME",)])
    if isinstance(time, StreamleaseError):
        raise time
    read_at = int(time[0]) * 1000 + int(time[1]) // 1000
    records = {group: parse_record(group, reply, read_at) for group, reply in zip(groups, found, strict=True)}
    given = await pulses.read(
        redis, [record.pulse for record in records.values() if record.pulse is not None]
    )
    return {group: record.kept_by(given) for group, record in records.items()}


def record_command(group: str) -> Command:
    """The command whose reply `parse_record` takes."""
    return ("HMGET", keys.leader(group), "term", "host", "mailbox", "renewed_at", "ttl", "pulse")


def parse_record(group: str, reply: Sequence[bytes | None] | StreamleaseError, read_at: int) -> LeaderRecord:
    """A record as it is written, without what its pulse says; a damaged one says so. Pure.

    Args:
        reply: to `record_command`, as of ``ask_each``.

    Raises:
        StoreUnavailable, StoreRefused: the same, unless the key is one of another type.
    """
    if isinstance(reply, StreamleaseError):
        if "WRONGTYPE" not in str(reply):
            raise reply
        return _damaged_record(group, "it is no hash", read_at)
    if reply[0] is None:
        return NOBODY
    try:
        term, host, mailbox, renewed_at, ttl, tag = (field.decode() if field else "0" for field in reply)
        if int(term) < 0:
            raise ValueError(f"term {term}")
        return LeaderRecord(
            term=int(term),
            host=host if reply[1] else "",
            mailbox=mailbox if reply[2] else "",
            renewed_at=int(renewed_at),
            ttl=int(ttl),
            read_at=read_at,
            written_at=int(renewed_at),
            pulse=Pulse(tag, host) if reply[1] and reply[5] else None,
        )
    except ValueError as error:
        return _damaged_record(group, " ".join(str(error).split())[:100], read_at)


def _damaged_record(group: str, why: str, read_at: int) -> LeaderRecord:
    return replace(
        NOBODY,
        read_at=read_at,
        damage=f"the leadership record of group {group} is damaged ({why}): remove key "
        f"{keys.leader(group)}, and the next leader begins above the terms of the journal",
    )


@dataclass(slots=True)
class LeaderWatch:
    """What one process has seen of the leadership record of one group.

    `now` is always the process' own clock in milliseconds; it must not run backwards.
    """

    record: LeaderRecord = NOBODY
    """As it was read last."""
    since: int | None = None
    """Since when it is known to be the same; None before the first look."""
    before: int | None = None
    """When it was looked at before that, and was another."""
    looked_at: int | None = None

    def observe(self, record: LeaderRecord, now: int, unchanged: int | None = None) -> bool:
        """Note what the record says at `now`; whether an attempt to lead may succeed.

        Args:
            unchanged: since when this process has seen the same of the pulse that keeps it.
        """
        same = (record.term, record.renewed_at) == (self.record.term, self.record.renewed_at)
        if self.since is None or not same:
            self.since, self.before = now, self.looked_at
        if unchanged is not None and unchanged < self.since:
            self.since, self.before = unchanged, None
        self.record, self.looked_at = record, now
        if record.damage:
            return False
        if not record.held:
            return True
        return record.expired and now - self.since >= record.ttl

    def silence(self, now: int) -> int:
        """For how long (ms) the leader has not renewed, by the clock that says less; 0 if nobody leads."""
        if self.since is None or not self.record.held:
            return 0
        own = now - (self.since if self.before is None else self.before)
        return max(0, min(own, self.record.read_at - self.record.renewed_at))


@dataclass(slots=True)
class Candidacy:
    """One host's wish to lead one group: it watches the record until it may claim or take over."""

    group: str
    host: str
    mailbox: str
    config: LeadershipConfig
    floor: int = 0
    """The new term must be above this one: the highest that anybody is known to have seen."""
    lineage: str = ""
    """Of the data in which the new term was issued; empty if the server does not tell."""
    watch: LeaderWatch = field(default_factory=LeaderWatch)
    declared: bool = False
    """Whether nobody may begin to lead it once its declaration is gone."""

    def observe(self, record: LeaderRecord, now: int, unchanged: int | None = None) -> bool:
        """As `LeaderWatch.observe`."""
        return self.watch.observe(record, now, unchanged)

    def deaf(self, now: int) -> int:
        """For how long (ms) no leader heard anybody: the former one did until it was to renew at most."""
        return max(0, self.watch.silence(now) - self.config.renew_interval)

    async def attempt(self, redis: AsyncRedis) -> int | None:
        """Claim or take over, as the watched record demands: the new term, or None if somebody else leads.

        Raises:
            UnknownGroup: nobody leads it, and nobody declared it; nothing was done.
            StoreUnavailable: Redis does not answer; nothing was done.
            Indefinite: no answer after sending; the next `observe` tells.
        """
        arguments: list[str | int] = [self.host, self.mailbox, self.config.ttl, self.floor]
        of_group = [keys.leader(self.group)]
        watched = self.watch.record
        if watched.held:
            script = _TAKE_OVER
            arguments += [watched.term, watched.written_at]
        else:
            script = _CLAIM
            of_group += [keys.definition(self.group)] if self.declared else []
        done, term, *lineage = await script.run(redis, of_group, [*arguments, leap()])
        if done == 2:
            raise UnknownGroup(f"group {self.group} is not declared, or was deleted: nobody leads it")
        if not done:
            return None
        self.lineage = lineage[0].decode()
        return int(term)


async def renew_all(
    redis: AsyncRedis,
    host: str,
    terms: Mapping[str, int],
    lineages: Mapping[str, str] | None = None,
    tag: str = "",
) -> dict[str, int | StreamleaseError | None]:
    """Stay leader of many groups for another ttl, in one write; what is wrong with one record is its own.

    Args:
        terms: group -> term in which `host` leads it.
        lineages: group -> lineage of the data in which that term was issued.
        tag: of the pulses of `host` that keep these leaderships from now on; empty: none do.

    Returns:
        group -> the term that stands in its record, for those that `host` leads no more; None for those whose
        term is of another lineage than the data; an error for those whose record cannot be written, or whose
        server of a cluster does not answer.

    Raises:
        StoreUnavailable, Indefinite: Redis does not answer; some may be renewed.
    """
    of = lineages or {}
    calls = [
        _RENEW.call([keys.leader(group)], [host, term, of.get(group, ""), tag])
        for group, term in terms.items()
    ]
    lost: dict[str, int | StreamleaseError | None] = {}
    for group, reply in zip(terms, await run_each(redis, calls), strict=True):
        if isinstance(reply, ResponseError | StreamleaseError):
            lost[group] = refusal(reply) if isinstance(reply, ResponseError) else reply
            continue
        done, other = reply
        if not done:
            lost[group] = int(other)
        elif done == 2:
            lost[group] = None
    return lost


async def resign(redis: AsyncRedis, group: str, host: str, term: int) -> bool:
    """Give leadership up; False if it was not held any more."""
    return bool(await _RESIGN.run(redis, [keys.leader(group)], [host, term]))


async def resign_all(
    redis: AsyncRedis, host: str, terms: Mapping[str, int]
) -> dict[str, StreamleaseError | None]:
    """Give up the leadership of many groups, as far as it is held, in one write.

    Args:
        terms: group -> term in which `host` led it.

    Returns:
        group -> what went wrong; None: it does not lead that one any more.

    Raises:
        StoreUnavailable, Indefinite: Redis does not answer; some may be given up.
    """
    calls = [_RESIGN.call([keys.leader(group)], [host, term]) for group, term in terms.items()]
    wrong: dict[str, StreamleaseError | None] = dict.fromkeys(terms)
    for group, reply in zip(terms, await run_each(redis, calls), strict=True):
        if isinstance(reply, ResponseError | StreamleaseError):
            wrong[group] = refusal(reply) if isinstance(reply, ResponseError) else reply
    return wrong


async def name_heir(redis: AsyncRedis, group: str, host: str, term: int, milliseconds: int) -> bool:
    """Have nobody but `host` claim the group for that long, if the leader of `term` resigns.

    Args:
        milliseconds: 10,000 at most.

    Returns:
        False: another term has begun, or another host is to follow.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite: Redis does not answer.
    """
    return bool(await _HEIR.run(redis, [keys.leader(group)], [host, term, milliseconds]))


async def witness(redis: AsyncRedis, group: str, term: int) -> bool:
    """Say that `term` was issued; True if the record did not know: then nobody leads any more.

    A group that was forgotten together with its record gets no new one.

    Raises:
        StoreUnavailable, Indefinite: Redis does not answer.
    """
    return bool(await _WITNESS.run(redis, [keys.leader(group), keys.definition(group)], [term]))
