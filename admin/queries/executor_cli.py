"""``streamlease executor``: the settings of an executor; the executor itself is the room ``executor``."""

from __future__ import annotations

import asyncio
import re
import secrets
import socket
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from streamlease.admin.common_options import RedisUrl, chosen_url
from streamlease.admin.log_format import LogFormat, LogFormatOption, set_up_logs
from streamlease.admin.queries.job_options import pairs
from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.quantities import parse_duration


def executor(
    redis: RedisUrl = None,
    name: Annotated[
        str,
        typer.Option(
            envvar="STREAMLEASE_EXECUTOR_NAME",
            help="Its name, which no other one may have. Default: that of this machine, and a random end.",
        ),
    ] = "",
    slots: Annotated[
        int, typer.Option(envvar="STREAMLEASE_EXECUTOR_SLOTS", help="How many workers it runs at once.")
    ] = 4,
    ports: Annotated[
        str,
        typer.Option(
            envvar="STREAMLEASE_EXECUTOR_PORTS",
            metavar="A-B",
            help="Ports, A and B included, one for each worker of a job of several. Without them it "
            "takes none of these.",
        ),
    ] = "",
    label: Annotated[
        list[str] | None,
        typer.Option(
            envvar="STREAMLEASE_EXECUTOR_LABELS", metavar="K=V", help="For jobs that want it; again."
        ),
    ] = None,
    address: Annotated[
        str,
        typer.Option(
            envvar="STREAMLEASE_EXECUTOR_ADDRESS",
            help="Where other workers reach the ports. Default: the name of this machine.",
        ),
    ] = "",
    folder: Annotated[
        Path | None,
        typer.Option(
            envvar="STREAMLEASE_EXECUTOR_FOLDER",
            help="Where programs run, each in a folder that is removed at its end. Default: a temporary one.",
        ),
    ] = None,
    program_redis: Annotated[
        str,
        typer.Option(
            envvar="STREAMLEASE_PROGRAM_REDIS_URL",
            metavar="URL",
            help="The Redis that programs get, with the rights of a client. Default: the executor's own.",
        ),
    ] = "",
    pass_: Annotated[
        list[str] | None,
        typer.Option(
            "--pass", metavar="NAME", help="Also give programs this variable of the environment; again."
        ),
    ] = None,
    lease: Annotated[
        str,
        typer.Option(
            envvar="STREAMLEASE_EXECUTOR_LEASE",
            help="After so much silence its queries are lost, or placed anew on others.",
        ),
    ] = "15s",
    drain_timeout: Annotated[
        str,
        typer.Option(
            envvar="STREAMLEASE_DRAIN_TIMEOUT",
            help="How long its workers may take to end after SIGTERM or Ctrl-C.",
        ),
    ] = "20s",
    log_format: LogFormatOption = LogFormat.TEXT,
) -> None:
    """Run programs that were submitted, until SIGTERM or Ctrl-C.

    It needs STREAMLEASE_SUBMIT_KEY in its environment, and runs only what is signed with that key.
    """
    from streamlease.admin.queries.secrets_aside import own_secrets

    found = ports and re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", ports)
    if ports and not found:
        raise InvalidOption(f"--ports is {ascii(ports)[:80]}: give two ports, such as 7000-7099")
    labels = pairs("--label", label)
    lease_ms, drain_ms = parse_duration("--lease", lease), parse_duration("--drain-timeout", drain_timeout)
    from streamlease.executor.executor import ExecutorConfig
    from streamlease.executor.executor_process import run_executor
    from streamlease.executor.program_environment import check_passed
    from streamlease.queries.core.signed_orders import check_key

    passed = check_passed(pass_ or ())
    secrets_ = own_secrets()
    key = check_key(secrets_.key)
    url = chosen_url(redis or secrets_.redis)
    own = tempfile.TemporaryDirectory(prefix="streamlease-executor-") if folder is None else None
    try:
        config = ExecutorConfig(
            name or _own_name(),
            program_redis or url,
            Path(own.name) if own is not None else folder or Path(),
            slots,
            (int(found[1]), int(found[2])) if found else None,
            labels,
            address,
            lease_ms / 1000,
            drain_ms / 1000,
            passed,
        )
        set_up_logs(log_format)
        asyncio.run(run_executor(url, config, key))
    finally:
        if own is not None:
            own.cleanup()


def _own_name() -> str:
    machine = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname()).strip("-")[:40] or "executor"
    return f"{machine}-{secrets.token_hex(3)}"
