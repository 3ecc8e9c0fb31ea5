"""``streamlease submit``: have a program run on executors."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from streamlease.admin.common_options import AsJson, RedisUrl, chosen_url, operator
from streamlease.admin.output import document, line, note
from streamlease.admin.queries.job_options import Upload, pairs, uploads
from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.ids import check_name
from streamlease.protocol.quantities import parse_duration

if TYPE_CHECKING:
    from streamlease.queries.core.record import QueryRecord
    from streamlease.queries.core.signed_orders import Job
    from streamlease.streams.redis.connection import AsyncRedis

FAILED = 1


def submit(
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB.py",
            help="The program; or what executors fetch: file:///PATH of theirs, s3://... or gs://...",
        ),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARG...", help="Arguments of the program.")
    ] = None,
    name: Annotated[str, typer.Option(help="Its name in views. Default: that of the program.")] = "",
    workers: Annotated[int, typer.Option(help="How many processes run the program together.")] = 1,
    placement: Annotated[
        str,
        typer.Option(
            metavar="random|pinned",
            help="random: on any that fit; pinned: worker by worker on those named with --on. Default: "
            "pinned if there is an --on.",
        ),
    ] = "",
    on: Annotated[
        list[str] | None, typer.Option(metavar="EXECUTOR", help="Only on this executor; again.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="Only on executors with this label; again.")
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V", help="For the program; spark.* also for its Spark session; again."),
    ] = None,
    file: Annotated[
        list[str] | None,
        typer.Option(
            metavar="F",
            help="Put this file beside the program; or what executors fetch: file:///PATH of theirs, "
            "s3://... or gs://...; again.",
        ),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Place it anew when an executor dies; with the same arguments.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for its end; exit 0 only if all workers did.")
    ] = False,
    spawn_timeout: Annotated[
        str, typer.Option(help="How long it may take until all workers have joined.")
    ] = "60s",
    grace: Annotated[
        str, typer.Option(help="How long a worker may take to end after SIGTERM, before it is killed.")
    ] = "10s",
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> int:
    """Run a program on executors, in one or several processes.

    It needs STREAMLEASE_SUBMIT_KEY in its environment, as the executors have it.
    """
    from streamlease.admin.queries.secrets_aside import KEY_VARIABLE
    from streamlease.queries.core.signed_orders import check_key

    key = check_key(os.environ.get(KEY_VARIABLE, ""))
    files = uploads(job, file or ())
    times = parse_duration("--spawn-timeout", spawn_timeout), parse_duration("--grace", grace)
    made = _job(
        name or Path(files[0].file.name).stem, workers, _placement(placement, on or []), on or [],
        pairs("--label", label), pairs("--conf", conf), arguments or [], files, restart, times,
    )  # fmt: skip
    record = asyncio.run(_submit(chosen_url(redis), key, made, files, wait, as_json))
    from streamlease.admin.facts.queries import QueryRow

    if as_json:
        document(QueryRow.of(record))
    elif not wait:
        line(f"{shown(record)}: 'streamlease query show {record.query}'")
    return 0 if not wait or record.outcome == "done" else FAILED


def _placement(placement: str, on: list[str]) -> Literal["random", "pinned"]:
    if placement not in ("", "random", "pinned"):
        raise InvalidOption(f"--placement is {ascii(placement)[:80]}: give random, or pinned")
    if placement == "pinned" and not on:
        raise InvalidOption(
            "--placement pinned needs to know where: give --on EXECUTOR, for each worker if you like"
        )
    return "pinned" if placement == "pinned" or (on and not placement) else "random"


def _job(
    name: str,
    workers: int,
    placement: Literal["random", "pinned"],
    on: list[str],
    labels: tuple[tuple[str, str], ...],
    conf: tuple[tuple[str, str], ...],
    arguments: list[str],
    files: list[Upload],
    restart: bool,
    times: tuple[int, int],
) -> Job:
    from streamlease.queries.core.signed_orders import MOST_ORDER, MOST_WORKERS, Job
    from streamlease.queries.submitting import new_query

    check_name("a query", name)
    if not 1 <= workers <= MOST_WORKERS:
        raise InvalidOption(f"--workers is {workers}: it must be from 1 to {MOST_WORKERS}")
    if placement == "pinned" and len(on) > workers:
        raise InvalidOption(f"--on names {len(on)} executors for {workers} workers: give --workers {len(on)}")
    job = Job(
        query=new_query(),
        name=name,
        workers=workers,
        placement=placement,
        on=tuple(on),
        labels=labels,
        conf=conf,
        arguments=tuple(arguments),
        program=files[0].file,
        files=tuple(one.file for one in files[1:]),
        restart=restart,
        spawn_ms=times[0],
        grace_ms=times[1],
        who=operator(),
    )
    if len(job.text.encode("utf-8", "surrogatepass")) > MOST_ORDER // 2:
        raise InvalidOption(
            f"the arguments and settings of the job are longer than {MOST_ORDER // 2048} KiB: "
            f"put them into a --file"
        )
    return job


async def _submit(
    url: str, key: bytes, job: Job, files: list[Upload], wait: bool, as_json: bool
) -> QueryRecord:
    from streamlease.agent.client import connect
    from streamlease.queries import submitting
    from streamlease.registry.spawn import queue_client

    async with connect(url) as client:
        submitting.check_one_server(client.redis)
        contents = [one.content for one in files if one.content is not None]
        with contextlib.closing(queue_client(url)) as queue:
            record = await submitting.submit(client.redis, queue, key, job, contents)
        if not wait:
            return record
        return await wait_for_end(client.redis, record.query, quiet=as_json)


async def wait_for_end(redis: AsyncRedis, query: str, *, quiet: bool) -> QueryRecord:
    """Wait until a query has ended; says what becomes of it."""
    from streamlease.queries.query_waits import until_ended

    def told(record: QueryRecord) -> None:
        if not quiet:
            note(shown(record))

    return await until_ended(redis, query, on_change=told)


def shown(record: QueryRecord) -> str:
    """A query in one line."""
    from streamlease.queries.core.record import QueryStage

    text = f"query {record.query} ({record.name}) is {record.state.value}"
    if record.state in (QueryStage.SPAWNING, QueryStage.RUNNING):
        text += f" on {', '.join(dict.fromkeys(one.executor for one in record.workers))}"
    if record.outcome is not None:
        text += f": {record.outcome.value}"
    return f"{text}, {record.reason}" if record.reason else text
