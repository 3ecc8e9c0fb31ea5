"""What the demo shows: live progress while it runs, one table or one JSON document at the end."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

PLAIN_SECONDS = 5.0
"""How often a line is printed where there is no terminal."""


@dataclass(slots=True)
class DemoProgress:
    """Where the demo is."""

    total: int = 0
    published: int = 0
    consumed: int = 0
    owners: dict[str, int] = field(default_factory=dict)
    state: str = "starting"
    term: int | None = None
    began: float = field(default_factory=time.monotonic)
    events: list[str] = field(default_factory=list)

    def say(self, event: str) -> None:
        """Something happened."""
        self.events.append(f"{time.monotonic() - self.began:6.1f} s  {event}")

    def see(self, group: dict[str, Any], owners: dict[str, int]) -> None:
        """Take over what the leader says."""
        self.consumed = sum(stream["committed"] for stream in group["streams"])
        self.owners = owners
        self.state = group["state"]
        self.term = group["leader"]["term"]

    @property
    def line(self) -> str:
        """Everything in one line."""
        held = ", ".join(f"{name} holds {count}" for name, count in self.owners.items())
        return (
            f"published {self.published:,} / consumed {self.consumed:,} of {self.total:,}; "
            f"streams: {held or 'not held yet'}; term {self.term or '-'}, {self.state}"
        )


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """How it went."""

    published: int
    delivered: int
    missing: int
    duplicated: int
    archived: int
    """Flights in the files of the archive; the newest ones are in the memory only."""
    read_again: int
    """Rows that a Spark batch finds from the beginning, in files and in memory."""
    read_again_distinct: int
    streams_moved: int
    longest_hand_over_ms: int
    longest_take_over_ms: int
    both_queries_held_streams: bool
    take_over_seconds: float | None
    leader_replaced_seconds: float | None
    seconds: float
    mean_arrival_delay: dict[str, dict[str, float | None]]
    figures_equal: bool

    @classmethod
    def of(
        cls,
        *,
        published: int,
        judged: dict[str, Any],
        archived: int,
        truth: dict[str, float],
        group: dict[str, Any],
        both_held: bool,
        take_over_seconds: float | None,
        leader_seconds: float | None,
        seconds: float,
    ) -> DemoOutcome:
        """Compare what Spark found with what was published."""
        by_spark: dict[str, float] = judged["mean_delays"]
        carriers = sorted({*truth, *by_spark})
        return cls(
            published=published,
            delivered=judged["delivered"],
            missing=published - judged["distinct"],
            duplicated=judged["delivered"] - judged["distinct"],
            archived=archived,
            read_again=judged["read_again"],
            read_again_distinct=judged["read_again_distinct"],
            streams_moved=group["moves"],
            longest_hand_over_ms=group["longest_hand_over_ms"],
            longest_take_over_ms=group["longest_take_over_ms"],
            both_queries_held_streams=both_held,
            take_over_seconds=take_over_seconds,
            leader_replaced_seconds=leader_seconds,
            seconds=seconds,
            mean_arrival_delay={
                carrier: {"spark": by_spark.get(carrier), "file": truth.get(carrier)} for carrier in carriers
            },
            figures_equal=by_spark == truth,
        )

    @property
    def good(self) -> bool:
        """Nothing lost, nothing twice, and the same figures."""
        return (
            self.missing == 0
            and self.duplicated == 0
            and self.read_again == self.read_again_distinct == self.published
            and self.figures_equal
            and self.both_queries_held_streams
        )


class Reporter:
    """Shows progress on standard error and the outcome on standard output."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._errors = Console(stderr=True, highlight=False)
        self._live: Live | None = None
        self._shown = 0
        self._line_at = 0.0

    def __enter__(self) -> Reporter:
        if self._errors.is_terminal:
            self._live = Live(console=self._errors, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(self, progress: DemoProgress) -> None:
        """Show where the demo is."""
        if self._live is not None:
            table = Table.grid(padding=(0, 2))
            for name, done in (("published", progress.published), ("consumed", progress.consumed)):
                table.add_row(name, ProgressBar(total=progress.total, completed=done, width=40), f"{done:,}")
            self._live.update(
                Group(*map(Text, progress.events), table, Text(progress.line, overflow="ellipsis"))
            )
            return
        for event in progress.events[self._shown :]:
            self._errors.print(event, soft_wrap=True)
        self._shown = len(progress.events)
        if time.monotonic() >= self._line_at:
            self._line_at = time.monotonic() + PLAIN_SECONDS
            self._errors.print(f"{time.monotonic() - progress.began:6.1f} s  {progress.line}", soft_wrap=True)

    def show(self, outcome: DemoOutcome) -> None:
        """The end: one table, or one JSON document."""
        if self._as_json:
            print(json.dumps(asdict(outcome) | {"ok": outcome.good}, indent=2))  # noqa: T201
            return
        console = Console(highlight=False)
        table = Table(title="Flights of 2013 through $shared/demo/flights/#", title_justify="left")
        table.add_column("")
        table.add_column("", justify="right")
        for name, value in _rows(outcome):
            table.add_row(name, value)
        console.print(table)
        delays = Table(title="Mean arrival delay in minutes", title_justify="left")
        delays.add_column("carrier")
        delays.add_column("computed by Spark", justify="right")
        delays.add_column("straight from the file", justify="right")
        for carrier, means in outcome.mean_arrival_delay.items():
            delays.add_row(carrier, _figure(means["spark"]), _figure(means["file"]))
        console.print(delays)
        verdict = "every flight arrived exactly once" if outcome.good else "NOT as it should be"
        console.print(f"{verdict}; {outcome.seconds:.0f} s")


def _rows(outcome: DemoOutcome) -> list[tuple[str, str]]:
    return [
        ("published", f"{outcome.published:,}"),
        ("delivered", f"{outcome.delivered:,}"),
        ("missing", f"{outcome.missing:,}"),
        ("duplicated", f"{outcome.duplicated:,}"),
        ("in the archive by then", f"{outcome.archived:,}"),
        ("read again from the beginning, by a batch", f"{outcome.read_again:,}"),
        ("streams moved", f"{outcome.streams_moved:,}"),
        ("longest hand-over between live queries", f"{outcome.longest_hand_over_ms:,} ms"),
        ("killed query's streams taken over after", _seconds(outcome.take_over_seconds)),
        ("killed leader replaced after", _seconds(outcome.leader_replaced_seconds)),
    ]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.6f}"
