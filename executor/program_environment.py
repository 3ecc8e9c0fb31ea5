"""What the environment of a program holds: what it needs, and nothing that is the executor's own."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable

from streamlease.catalog.own_query import QUERY_ID, QUERY_TOKEN
from streamlease.protocol.errors import InvalidOption
from streamlease.queries.core.signed_orders import Job
from streamlease.queries.join_query import CONF, WORKER
from streamlease.streams.redis.urls import URL_VARIABLE

PASSED = frozenset(
    {
        "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "JAVA_HOME",
        "SPARK_HOME", "SPARK_CONF_DIR", "HADOOP_HOME", "HADOOP_CONF_DIR", "YARN_CONF_DIR",
        "KUBERNETES_SERVICE_HOST",
        "KUBERNETES_SERVICE_PORT", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "LD_LIBRARY_PATH",
        "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "http_proxy", "https_proxy", "no_proxy",
        "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "JAVA_TOOL_OPTIONS", "OMP_NUM_THREADS", "SPARK_LOCAL_IP",
        "SPARK_LOCAL_HOSTNAME",
    }
)  # fmt: skip
"""Variables of the executor that its programs get."""

OURS = "STREAMLEASE_"


def check_passed(names: Iterable[str]) -> frozenset[str]:
    """Names of further variables that programs get.

    Raises:
        InvalidOption: one is Streamlease's own, which are the executor's.
    """
    for name in (found := [*names]):
        if name.startswith(OURS) or not name.replace("_", "").isalnum():
            raise InvalidOption(
                f"--pass {ascii(name)[:80]}: programs get no variables of the executor that begin with {OURS}"
            )
    return frozenset(found)


def program_environment(
    job: Job, query: str, worker: int, token: str, url: str, more: frozenset[str]
) -> dict[str, str]:
    """The whole environment of a program."""
    passed = {
        name: value
        for name, value in os.environ.items()
        if name in PASSED or name in more or name.startswith("LC_")
    }
    spark = [
        f"--conf {shlex.quote(f'{name}={value}')}" for name, value in job.conf if name.startswith("spark.")
    ]
    python = {
        "PYTHONUNBUFFERED": "1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    if spark:
        python["PYSPARK_SUBMIT_ARGS"] = " ".join([*spark, "pyspark-shell"])
    return (
        passed
        | python
        | {
            QUERY_ID: query,
            QUERY_TOKEN: token,
            WORKER: str(worker),
            CONF: json.dumps(dict(job.conf)),
            URL_VARIABLE: url,
        }
    )
