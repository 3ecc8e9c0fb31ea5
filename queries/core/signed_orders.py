"""What is signed, so that nobody who can write to Redis alone can have anything run.

Whoever submits and whoever executes have one key (``STREAMLEASE_SUBMIT_KEY``). Three texts are signed with
it, each for one purpose, so that none passes for another:

========= ====================================================== ========================================
job       what is to be run, under which id                      by who submits; as long as it is kept
permit    that a query may be placed, until a moment             by who submits, then by who runs it
order     these workers of a query, on that life of an executor, by who places it
          until a moment
========= ====================================================== ========================================

An executor runs an order once, if its job has the same signature, until the order's time is over. A job is
placed anew only while the permit of the query that was lost holds; those who run it renew it, so it lasts a
few minutes longer than the query. Query ids of one job are ``ID``, ``ID.2``, ``ID.3``, so that a permit of
one query is none for another.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from streamlease.protocol.errors import InvalidInput, InvalidOption, QueryRefused

LEAST_KEY = 16
"""Characters of a submit key."""

MOST_BYTES = 64 * 1024 * 1024
"""Of all files of a job that travel through Redis."""

MOST_ORDER = 128 * 1024
"""Bytes of an order, with its job in it."""

MOST_WORKERS = 256

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._ +=@-]{0,199}\Z")
_QUERY = re.compile(r"[0-9a-f]{16}(?:\.[1-9][0-9]{0,8})?\Z")

Purpose = Literal["job", "permit", "order"]


class Signed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @property
    def text(self) -> str:
        """What is signed."""
        return json.dumps(self.model_dump(), separators=(",", ":"), sort_keys=True)


class JobFile(Signed):
    """A file of a job, in Redis by its hash, or where the executor finds it."""

    name: str
    sha256: str = ""
    size: int = 0
    """Bytes; 0, with a `uri`: who submitted it did not read it."""
    uri: str = ""
    """Where the executor fetches it; empty: it is in Redis."""


class Job(Signed):
    """What is to be run."""

    query: str
    """The id of its first query."""
    name: str
    workers: int
    placement: Literal["random", "pinned"]
    on: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    conf: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()
    program: JobFile
    files: tuple[JobFile, ...] = ()
    restart: bool = False
    spawn_ms: int
    grace_ms: int
    who: str


class Permit(Signed):
    """The query may be placed until then (ms of the Redis clock)."""

    query: str
    until: int


class OrderedWorker(Signed):
    worker: int
    port: int | None


class Order(Signed):
    """Workers of a query for one life of an executor."""

    query: str
    life: str
    workers: tuple[OrderedWorker, ...]
    until: int
    job: str
    """Its text: the signature of the order is enough."""


T = TypeVar("T", bound=Signed)


def check_key(key: str) -> bytes:
    """The submit key as bytes.

    Raises:
        InvalidOption: there is none, or it is too short to be secret.
    """
    if not key:
        raise InvalidOption(
            "there is no submit key: set STREAMLEASE_SUBMIT_KEY to the same secret for executors and "
            "submitters"
        )
    if len(key) < LEAST_KEY:
        raise InvalidOption(
            f"the submit key has {len(key)} characters: use at least {LEAST_KEY} random ones, for whoever "
            f"knows it can run programs"
        )
    return key.encode("utf-8", "surrogateescape")


def sign(key: bytes, purpose: Purpose, text: str) -> str:
    """The signature of a text, for one purpose."""
    return hmac.new(key, f"streamlease {purpose} 1\n{text}".encode(), hashlib.sha256).hexdigest()


def opened(key: bytes, kind: type[T], purpose: Purpose, text: str, signature: str) -> T:
    """What was signed.

    Raises:
        QueryRefused: it was not signed with this key for that purpose, or it is malformed.
    """
    expected = sign(key, purpose, text)
    if not hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")):
        raise QueryRefused(f"the {purpose} is not signed with this submit key")
    try:
        return kind.model_validate_json(text, strict=False)
    except ValidationError as error:
        raise QueryRefused(f"the {purpose} is malformed: {error.errors()[0]['msg']}") from None


def token_of(key: bytes, query: str) -> str:
    """The token by which a program shows that it is of that query. It is never written to Redis."""
    return hmac.new(key, f"streamlease token 1\n{query}".encode(), hashlib.sha256).hexdigest()


def token_digest(token: str) -> str:
    """What Redis knows of a token."""
    return hashlib.sha1(token.encode(), usedforsecurity=False).hexdigest()


def check_file_name(name: str) -> str:
    """`name`, if a file of a job may have it: no folders, nothing hidden.

    Raises:
        InvalidInput: it may not.
    """
    if not _FILE_NAME.match(name):
        raise InvalidInput(
            f"a file cannot be called {ascii(name)[:80]}: use letters, digits and . _ - in front of no folder"
        )
    return name


def check_query(query: str) -> str:
    """`query`, if it is the id of a query.

    Raises:
        InvalidInput: it is not.
    """
    if not _QUERY.match(query):
        raise InvalidInput(f"{ascii(query)[:80]} is no query: 'streamlease query list' shows their ids")
    return query


def next_query(query: str) -> str:
    """The id of the query that follows one that was lost."""
    first, _, number = query.partition(".")
    return f"{first}.{int(number or 1) + 1}"


def former_query(query: str) -> str | None:
    """The id of the query that this one follows, if it is one that follows another."""
    first, _, number = query.partition(".")
    if int(number or 1) < 2:
        return None
    return first if number == "2" else f"{first}.{int(number) - 1}"


def first_query(query: str) -> str:
    """The id that stands in the job of a query."""
    return query.partition(".")[0]


def check_order(key: bytes, text: str, signature: str, life: str, now: int) -> tuple[Order, Job]:
    """An order that this life of an executor may run now, and its job.

    Raises:
        QueryRefused: it may not.
    """
    order = opened(key, Order, "order", text, signature)
    if order.life != life:
        raise QueryRefused(
            f"the order is for another executor, or for an earlier life of this one ({order.life})"
        )
    if order.until <= now:
        raise QueryRefused(f"the order's time was over {(now - order.until) / 1000:.1f} s ago")
    try:
        job = Job.model_validate_json(order.job, strict=False)
        check_query(order.query)
        for file in (job.program, *job.files):
            check_file_name(file.name)
    except (ValidationError, InvalidInput) as error:
        raise QueryRefused(f"the order's job is malformed: {' '.join(str(error).split())[:200]}") from None
    if job.query != first_query(order.query):
        raise QueryRefused(f"the order is for query {order.query}, and its job for {job.query}")
    return order, job


def check_job(key: bytes, query: str, text: str, signature: str, permit: str, now: int) -> Job:
    """The job of a query that may be placed now.

    Args:
        permit: ``SIGNATURE TEXT``, as it stands in Redis.

    Raises:
        QueryRefused: it may not.
    """
    job = opened(key, Job, "job", text, signature)
    if job.query != first_query(query):
        raise QueryRefused(f"the job of query {query} is that of {job.query}")
    mark, _, said = permit.partition(" ")
    permitted = opened(key, Permit, "permit", said, mark)
    if permitted.query != query:
        raise QueryRefused(f"the permit of query {query} is that of {permitted.query}")
    if permitted.until <= now:
        raise QueryRefused(
            f"the permit to place query {query} ended {(now - permitted.until) / 1000:.0f} s ago"
        )
    return job


def permit_for(key: bytes, query: str, until: int) -> str:
    """A permit, as it stands in Redis."""
    text = Permit(query=query, until=until).text
    return f"{sign(key, 'permit', text)} {text}"


def said_by(text: str) -> str:
    """What an order that is not believed says of itself."""
    try:
        order = Order.model_validate_json(text, strict=False)
        who = Job.model_validate_json(order.job, strict=False).who
    except ValueError:
        return "it cannot be read"
    return f"it says that it is of query {printable(order.query)}, submitted by {printable(who)}"


def printable(text: str) -> str:
    """`text` for a line of a log, whoever has written it."""
    return ascii(text)[1:-1][:80]
