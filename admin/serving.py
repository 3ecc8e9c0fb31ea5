"""``streamlease serve``: settings of a leader host; the host itself is ``hosts.serve``."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated

import typer

from streamlease.admin.common_options import RedisUrl, chosen_url
from streamlease.admin.log_format import LogFormat, LogFormatOption, set_up_logs
from streamlease.protocol.errors import InvalidOption

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\Z")


def serve(
    redis: RedisUrl = None,
    name: Annotated[
        str, typer.Option(envvar="STREAMLEASE_SERVE_NAME", help="Name under which views show this host.")
    ] = "",
    http_host: Annotated[
        str, typer.Option(envvar="STREAMLEASE_HTTP_HOST", help="Address of the probes.")
    ] = "127.0.0.1",
    http_port: Annotated[
        int, typer.Option(envvar="STREAMLEASE_HTTP_PORT", help="Port of the probes; 0 picks a free one.")
    ] = 8080,
    drain_timeout: Annotated[
        float,
        typer.Option(
            envvar="STREAMLEASE_DRAIN_TIMEOUT",
            help="How many seconds to spend handing over leaders after SIGTERM or Ctrl-C.",
        ),
    ] = 20.0,
    log_format: LogFormatOption = LogFormat.TEXT,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --log-format json.")] = False,
) -> None:
    """Run a leader host until SIGTERM or Ctrl-C, then hand over its leaders.

    Probes: GET /healthz (the process lives) and GET /readyz (it takes leaders).
    """
    if name and not _NAME.match(name):
        raise InvalidOption(
            f"the name of a host cannot be {ascii(name)[:80]}: use letters, digits, '.', '_' and '-'"
        )
    url = chosen_url(redis)
    from streamlease.hosts.host import HostConfig
    from streamlease.hosts.serve import ServeConfig
    from streamlease.hosts.serve import serve as run_host
    from streamlease.streams.entries.decoding import prepare

    prepare()  # a leader writes dead letters, and its leases are not to wait for an import
    config = ServeConfig(url, HostConfig(name), http_host, http_port, drain_timeout)
    set_up_logs(LogFormat.JSON if as_json else log_format)
    asyncio.run(run_host(config))
