"""``streamlease redis start|stop|status``: the Redis that Streamlease brings along."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamlease.admin.common_options import AsJson
from streamlease.admin.output import document, iso_microseconds, line

if TYPE_CHECKING:
    from streamlease.admin.redis.embedded import EmbeddedRedis
    from streamlease.streams.redis.local_server import ServerState

app = typer.Typer(help="The embedded Redis of this machine.", no_args_is_help=True)

Directory = Annotated[
    Path | None,
    typer.Option("--dir", help="Where the server keeps its data. Default: ~/.local/state/streamlease/redis."),
]


def _server(directory: Path | None) -> EmbeddedRedis:
    from streamlease.admin.redis.embedded import EmbeddedRedis

    return EmbeddedRedis(directory)


def _show(server: EmbeddedRedis, state: ServerState | None, as_json: bool) -> None:
    from streamlease.admin.answers import EmbeddedRedis as Shown
    from streamlease.streams.redis.url_parts import masked

    directory = str(server.directory)
    if state is None:
        shown = Shown(running=False, directory=directory)
        text = f"no Redis runs in {directory}: start it with 'streamlease redis start'"
    else:
        shown = Shown(
            running=True,
            directory=directory,
            url=state.url,
            pid=state.pid,
            port=state.port,
            persistent=state.persistent,
            started=iso_microseconds(round(state.started * 1_000_000)),
            server=state.source,
        )
        way = "keeps its data" if state.persistent else "keeps nothing on disk"
        text = (
            f"{masked(state.url)} runs since {shown.started} as process {state.pid} and {way}\n"
            f"in {directory}; what names no other Redis finds it there"
        )
    if as_json:
        document(shown)
    else:
        line(text)


@app.command()
def start(
    port: Annotated[
        int | None,
        typer.Option(
            help="Port on 127.0.0.1; 0 picks a free one. Default: 6379, or a free one if that is taken.",
            show_default=False,
        ),
    ] = None,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Start the embedded Redis, or say where it is already running.

    It outlives this command and keeps its data. Commands, programs and Spark jobs of the same user that name
    no other Redis use it.
    """
    from streamlease.admin.redis.embedded import USUAL_PORT

    server = _server(directory)
    server.start(port)
    state = server.status()
    _show(server, state, as_json)
    if port is None and state is not None and state.port != USUAL_PORT and not as_json:
        line(f"port {USUAL_PORT} was taken when it was started")


@app.command()
def stop(directory: Directory = None, as_json: AsJson = False) -> None:
    """Stop the embedded Redis. Its data stays on disk."""
    server = _server(directory)
    stopped = server.stop()
    if as_json:
        from streamlease.admin.answers import StoppedRedis

        document(StoppedRedis(stopped=stopped, directory=str(server.directory)))
    else:
        line(f"{'stopped' if stopped else 'no Redis ran'} in {server.directory}")


@app.command()
def status(
    directory: Directory = None,
    url: Annotated[
        bool,
        typer.Option("--url", help="Print only its URL, password included, to set STREAMLEASE_REDIS_URL."),
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Say whether the embedded Redis is running, and where. Exit 1 if it is not."""
    server = _server(directory)
    state = server.status()
    if url and state is not None and not as_json:
        line(state.url)
        return 0
    _show(server, state, as_json)
    return 0 if state is not None else 1
