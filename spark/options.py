"""Options of ``readStream.format("streamlease")``: read once, checked whole, unknown ones refused by name.

Names and meanings are those of Spark's Kafka source wherever it has such an option.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.topics import SharedSubscription
from streamlease.spark import option_values as read
from streamlease.spark.core.limits import Limits

Starting = Literal["earliest", "latest"] | Mapping[str, int]

NAMES = (
    "redis",
    "subscribe",
    "startingOffsets",
    "startingTimestamp",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "slots",
    "sessionTimeoutMs",
    "redis.timeout",
    "includeHeaders",
    "includeCut",
    "columns",
    "embeddedLeader",
    "metricsPort",
    "queryName",
    "epochs",
    "maxEpochsPerTrigger",
)

MOST_NAME = 200
"""Characters of a query's name."""

DEFAULT_TRIGGER_DELAY_MS = 900_000
DEFAULT_REDIS_TIMEOUT_MS = 60_000


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one stream source, checked."""

    redis: str
    subscription: SharedSubscription
    starting_offsets: Starting = "latest"
    """``earliest``, ``latest``, or offsets by stream with -2 for the one and -1 for the other."""
    starting_timestamp: int | None = None
    """Milliseconds since 1970: begin with the first message appended after that."""
    limits: Limits = field(default_factory=Limits)
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    slots: int = 2
    session_timeout_ms: int = 10_000
    redis_timeout_ms: int = DEFAULT_REDIS_TIMEOUT_MS
    include_headers: bool = True
    include_cut: bool = False
    columns: tuple[str, ...] = ()
    """The columns wanted, in this order; empty for all."""
    embedded_leader: bool = True
    metrics_port: int | None = None
    """Where the process of the source, beside the driver, answers Prometheus."""
    query_name: str = ""
    """What the author calls the query, for people who look at the group; Spark does not tell a source."""
    whole_epochs: bool = False
    """Whether a micro-batch is whole epochs."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Read the options that Spark hands over; their names are not case-sensitive.

        Raises:
            InvalidOption: one is unknown, missing, has a value that it cannot have, or contradicts another.
            InvalidTopic: ``subscribe`` is malformed.
        """
        given = read.named(options, NAMES)
        subscribe = given.get("subscribe")
        if subscribe is None:
            raise InvalidOption(
                "option 'subscribe' is missing: name a shared subscription, such as '$shared/GROUP/FILTER'"
            )
        timeout = given.get("sessiontimeoutms", "10000")
        return cls(
            redis=read.redis_url(given),
            subscription=SharedSubscription.parse(subscribe),
            starting_offsets=_starting(given),
            starting_timestamp=read.moment("startingTimestamp", given),
            limits=_limits(given),
            min_partitions=read.optional_number("minPartitions", given, 1),
            max_records_per_partition=read.optional_number("maxRecordsPerPartition", given, 1),
            fail_on_data_loss=read.flag("failOnDataLoss", given.get("failondataloss", "true")),
            slots=read.number("slots", given.get("slots", "2"), 1, read.MOST_SLOTS),
            session_timeout_ms=read.number("sessionTimeoutMs", timeout, 2000, 86_400_000),
            redis_timeout_ms=(
                read.duration("redis.timeout", given["redis.timeout"])
                if "redis.timeout" in given
                else DEFAULT_REDIS_TIMEOUT_MS
            ),
            include_headers=read.flag("includeHeaders", given.get("includeheaders", "true")),
            include_cut=read.flag("includeCut", given.get("includecut", "false")),
            columns=read.words("columns", given.get("columns", "")),
            embedded_leader=read.flag("embeddedLeader", given.get("embeddedleader", "true")),
            query_name=_query_name(given),
            metrics_port=read.optional_number("metricsPort", given, 1, 65_535),
            whole_epochs=_whole_epochs(given),
        )


def _query_name(given: Mapping[str, str]) -> str:
    name = given.get("queryname", "")
    if len(name) > MOST_NAME or not name.isprintable():
        raise InvalidOption(
            f"option 'queryName' is {read.shown(name)}: give up to {MOST_NAME} characters that can be printed"
        )
    return name


def _starting(given: Mapping[str, str]) -> Starting:
    text = given.get("startingoffsets")
    if text is not None and "startingtimestamp" in given:
        raise InvalidOption(
            "options 'startingOffsets' and 'startingTimestamp' contradict each other: give one"
        )
    if text == "earliest":
        return "earliest"
    if text is None or text == "latest":
        return "latest"
    return read.offsets("startingOffsets", text)


def _whole_epochs(given: Mapping[str, str]) -> bool:
    mode = given.get("epochs", "off")
    if mode not in ("off", "atomic"):
        raise InvalidOption(f"option 'epochs' is {read.shown(mode)}: use 'off' or 'atomic'")
    if mode == "off":
        if "maxepochspertrigger" in given:
            raise InvalidOption(
                "option 'maxEpochsPerTrigger' is for micro-batches of whole epochs: set 'epochs' to 'atomic'"
            )
        return False
    for name in ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger"):
        if name.lower() in given:
            raise InvalidOption(
                f"option '{name}' would cut epochs in two, which 'epochs' 'atomic' excludes: "
                f"use 'maxEpochsPerTrigger'"
            )
    return True


def _limits(given: Mapping[str, str]) -> Limits:
    most = read.optional_number("maxOffsetsPerTrigger", given, 1)
    least = read.optional_number("minOffsetsPerTrigger", given, 1)
    size, delay = given.get("maxbytespertrigger"), given.get("maxtriggerdelay")
    if delay is not None and least is None:
        raise InvalidOption(
            f"option 'maxTriggerDelay' is {read.shown(delay)} without 'minOffsetsPerTrigger': "
            f"give both, or neither"
        )
    if most is not None and least is not None and least > most:
        raise InvalidOption(
            f"option 'minOffsetsPerTrigger' is {least}, above 'maxOffsetsPerTrigger' {most}: "
            f"give at most the same number"
        )
    return Limits(
        most,
        None if size is None else read.size("maxBytesPerTrigger", size),
        least,
        DEFAULT_TRIGGER_DELAY_MS if delay is None else read.duration("maxTriggerDelay", delay),
        read.optional_number("maxEpochsPerTrigger", given, 1),
    )
