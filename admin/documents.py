"""What ``--json`` prints, command by command: the models from which the JSON Schemas in the docs are made.

Programs may rely on it: names stay, and what is unknown is null. Commands do not build these models, so that
none of them pays for it; the tests check every document against them.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.json_schema import models_json_schema

Moment = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|\+00:00)$")]
"""ISO-8601 in UTC."""

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
StreamName = Annotated[str, Field(pattern=r"^.+\.\d+\.\d+$")]


class Document(BaseModel):
    """One JSON document: nothing more than these fields, all of them."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ErrorText(Document):
    type: str
    message: str


class Error(Document):
    """In place of any other document: what is wrong, with which value, and what to do."""

    error: ErrorText


class Leader(Document):
    host: str
    term: Count


# ---------------------------------------------------------------- groups


class GroupSummary(Document):
    subscription: str
    state: Literal["led", "paused", "no leader"]
    paused_since: Moment | None
    expired_at: Moment | None
    leader: Leader | None
    term: Count
    streams: Count
    lag: Count | None
    lag_seconds: Seconds | None


class Damaged(Document):
    """What cannot be read; told only where there is such a thing."""

    name: str
    why: str


class GroupList(Document):
    groups: list[GroupSummary]
    damaged: list[Damaged] = []
    next: str | None


class Paused(Document):
    who: str
    at: Moment | None
    until: Moment | None


class GroupStream(Document):
    stream: StreamName
    owner: str | None
    lease_epoch: Count
    state: str
    since: Moment | None
    committed: Count
    next: Count | None
    lag: Count | None
    lag_seconds: Seconds | None
    why: str


class Borrower(Document):
    id: str | None
    name: str
    host: str | None
    streams: Count
    drained: bool
    silent_seconds: float
    last_seen: Moment


class Group(Document):
    subscription: str
    start: str
    strategy: str
    leader: Leader | None
    state: str
    note: str
    paused: Paused | None
    expired_at: Moment | None
    truncated: dict[str, Count]
    lag: Count | None
    lag_seconds: Seconds | None
    streams: list[GroupStream]
    borrowers: list[Borrower]
    moves: Count
    longest_hand_over_ms: Count
    longest_take_over_ms: Count
    term: Count


class Declared(Document):
    subscription: str
    start: str
    created: bool


class Options(Document):
    strategy: str | None
    revocation_timeout_ms: Count | None
    on_poison: Literal["dead-letter", "stop"]
    max_failures: Count
    retry_delay_ms: Count
    max_retry_delay_ms: Count
    dead_letters: str | None
    expiry_ms: Count | None


class Altered(Document):
    subscription: str
    options: Options


class Done(Document):
    """Of acts that say no more than that they are done."""

    subscription: str
    act: str
    dry_run: bool


class PausedUntil(Done):
    until: Moment | None


class Drained(Done):
    borrower: str
    streams: list[StreamName]


class Undrained(Done):
    borrower: str


class DrainedHost(Document):
    act: Literal["drain", "undrain"]
    host: str
    drained: bool
    leaders: list[str]
    not_moved: list[str]


class Moved(Done):
    stream: StreamName
    from_: str | None = Field(alias="from")
    to: str


class Released(Done):
    stream: StreamName
    from_: str = Field(alias="from")
    lease_epoch: Count


class Grant(Document):
    stream: StreamName
    to: str


class Rebalanced(Document):
    subscription: str
    dry_run: bool
    grants: list[Grant]
    revokes: list[StreamName]
    targets: dict[str, Count]


class SteppedDown(Document):
    subscription: str
    former: Leader | None
    leader: Leader | None


class ResetStream(Document):
    stream: StreamName
    from_: Count = Field(alias="from")
    to: Count
    again: Count
    skipped: Count
    note: str


class Reset(Document):
    subscription: str
    dry_run: bool
    streams: list[ResetStream]


class Act(Document):
    at: Moment | None
    who: str
    act: str
    what: str
    outcome: str
    request: str
    details: dict[str, Any]


class History(Document):
    subscription: str
    acts: list[Act]


class Replayed(Document):
    by: str
    stream: StreamName
    offset: Count
    at: Moment | None = None


class DeadLetter(Document):
    place: str
    topic: str | None
    stream: StreamName | None
    offset: int
    lease_epoch: Count
    failures: Count
    cause: str
    borrower: str | None
    bytes: Count
    timestamp: Moment
    replayed: Replayed | None


class DeadLetters(Document):
    subscription: str
    dead_letters: list[DeadLetter]


class ReplayedLetters(DeadLetters):
    dry_run: bool


class Unstopped(Done):
    stream: StreamName
    offset: Count


# ---------------------------------------------------------------- spaces


class Retention(Document):
    age_ms: Count | None
    bytes: Count | None
    messages: Count | None
    force: bool
    group_expiry_ms: Count


class Generation(Document):
    number: Count
    streams: Count
    sealed: bool


class Column(Document):
    name: str
    type: str
    nullable: bool


class Schema(Document):
    columns: list[Column]
    fingerprint: str
    version: Count


class Space(Document):
    name: str
    topics: list[str]
    streams: Count
    shard_by: str
    retention: Retention
    durability: str
    ended: bool
    generations: list[Generation]
    schema_: Schema | None = Field(alias="schema")


class SpaceList(Document):
    spaces: list[Space]
    damaged: list[Damaged] = []


class SpaceStream(Document):
    stream: StreamName
    next: Count | None
    oldest: Count | None
    bytes: Count | None
    state: Literal["open", "pending", "sealed"] | None
    last_append: Moment | None
    held_by: str | None
    held_from: Count | None
    held_since: Moment | None
    finished_by: list[str] | None


class SpaceGroup(Document):
    subscription: str
    behind: Count
    idle_seconds: Seconds
    expires_after_seconds: Seconds | None
    expired_at: Moment | None


class SpaceShown(Document):
    name: str
    topics: list[str]
    streams: list[SpaceStream]
    shard_by: str
    retention: Retention
    durability: str
    ended: bool
    generations: list[Generation]
    schema_: Schema | None = Field(alias="schema")
    groups: list[SpaceGroup]


class Deleted(Document):
    deleted: str


# ---------------------------------------------------------------- the rest


class Server(Document):
    address: str
    name: str
    version: str
    memory: str


class Host(Document):
    host: str
    name: str
    pid: Count
    leaders: Count
    drained: bool


class SpaceStatus(Space):
    messages: Count


class GroupStatus(Document):
    subscription: str
    state: str
    leader: Leader | None
    term: Count
    borrowers: Count
    streams: Count
    lag: Count | None


class DamagedRecord(Damaged):
    what: Literal["space", "group"]


class Status(Document):
    redis: Server
    hosts: list[Host]
    spaces: list[SpaceStatus]
    groups: list[GroupStatus]
    damaged: list[DamagedRecord] = []


class Check(Document):
    check: str
    level: Literal["ok", "warn", "fail"]
    message: str
    remedy: str


class Doctor(Document):
    ok: bool
    checks: list[Check]


class EmbeddedRedis(Document):
    """Only `running` and `directory` if none runs."""

    running: bool
    directory: str
    url: str | None = None
    pid: Count | None = None
    port: Count | None = None
    persistent: bool | None = None
    started: Moment | None = None
    server: str | None = None


class StoppedRedis(Document):
    stopped: bool
    directory: str


class Published(Document):
    topic: str | None
    published: Count
    there_before: Count | None = None
    bytes: Count
    seconds: Seconds


class Imported(Document):
    space: str
    imported: Count
    there_before: Count
    deleted: Count


class Base64(Document):
    """Bytes that are no UTF-8."""

    base64: str


Bytes = str | Base64


class Message(Document):
    """One line for each message. `payload` is null and `values` is there in a space with a schema."""

    topic: str
    key: Bytes | None
    payload: Bytes | None
    stream: StreamName
    offset: Count
    timestamp: Moment
    headers: list[tuple[str, Bytes]]
    epoch: list[int] | None
    values: dict[str, Any] | None = None


DOCUMENTS: dict[str, tuple[type[Document], ...]] = {
    "consume": (Message,),
    "doctor": (Doctor,),
    "group alter": (Altered,),
    "group dead-letters list": (DeadLetters,),
    "group dead-letters put": (Unstopped,),
    "group dead-letters replay": (ReplayedLetters,),
    "group dead-letters retry": (Unstopped,),
    "group declare": (Declared,),
    "group delete": (Done,),
    "group describe": (Group,),
    "group drain": (Drained, Undrained, DrainedHost),
    "group expire": (Done,),
    "group history": (History,),
    "group list": (GroupList,),
    "group move": (Moved,),
    "group pause": (PausedUntil,),
    "group rebalance": (Rebalanced,),
    "group release": (Released,),
    "group reset": (Reset,),
    "group resume": (Done,),
    "group step-down": (SteppedDown,),
    "import redis-stream": (Imported,),
    "publish": (Published,),
    "redis start": (EmbeddedRedis,),
    "redis status": (EmbeddedRedis,),
    "redis stop": (StoppedRedis,),
    "space alter": (Space,),
    "space create": (Space,),
    "space delete": (Deleted,),
    "space list": (SpaceList,),
    "space seal": (Space,),
    "space show": (SpaceShown,),
    "status": (Status,),
}
"""Command -> the documents that it may print, beside `Error`."""


def schema(command: str) -> dict[str, Any]:
    """The JSON Schema of what a command prints with ``--json``, errors included."""
    models: list[type[Document]] = [*DOCUMENTS[command], Error]
    _, made = models_json_schema([(model, "validation") for model in models], ref_template="#/$defs/{model}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"streamlease {command} --json",
        "anyOf": [{"$ref": f"#/$defs/{model.__name__}"} for model in models],
        "$defs": made["$defs"],
    }


def check(command: str, text: str) -> None:
    """Whether one line of output is what the command promises.

    Raises:
        pydantic.ValidationError: it is not.
    """
    models = DOCUMENTS[command]
    if set(json.loads(text)) == {"error"}:
        models = (Error,)
    for place, model in enumerate(models):
        try:
            model.model_validate_json(text)
            return
        except ValidationError:
            if place == len(models) - 1:
                raise
