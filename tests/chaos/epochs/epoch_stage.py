"""What a run knows of its publishers and readers of epochs, and when they have settled."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from streamlease.agent.client import Client
from streamlease.agent.epochs.epoch_items import EpochBatch, Frontier
from tests.chaos.epochs.epoch_judge import EpochFacts
from tests.chaos.epochs.publisher_program import ROWS

SPACE = "e"
STREAMS = 3
SILENT_SECONDS = 4.0
"""A publisher that is silent for so long is given up."""


class EpochStage:
    """Of one run. The same readers go on where they had been when their process was killed."""

    def __init__(self) -> None:
        self.facts = EpochFacts(rows=ROWS)
        self._began = time.time()
        self._starts: dict[str, Any] = {}
        """Reader -> where its next process begins."""
        self._frontiers: dict[str, list[int]] = {}
        """Reader -> what it was told last."""
        self._newest: dict[str, int] = {}
        """Publisher -> the newest epoch that it gave up with an answer."""

    async def make(self, client: Client) -> None:
        """Make the space."""
        await client.create_space(
            SPACE, [f"{SPACE}/#"], streams=STREAMS, epochs=1, epochs_timeout=SILENT_SECONDS
        )

    def module(self, role: str, name: str, words: Sequence[str]) -> list[str]:
        """The module of a program and its last arguments."""
        if role == "epoch publisher":
            return ["tests.chaos.epochs.publisher_program", name, str(self._began)]
        (mode,) = words
        self.facts.modes[name] = mode
        start = self._starts.get(name, "earliest")
        return ["tests.chaos.epochs.reader_program", mode, json.dumps(start)]

    def take(self, name: str, event: dict[str, Any]) -> None:
        """What a program of epochs says."""
        facts = self.facts
        match event["event"]:
            case "giving up":
                facts.giving_up.add((event["attempt"], event["epoch"]))
            case "gave up":
                facts.given_up.add((event["attempt"], event["epoch"]))
                self._newest[name] = event["epoch"]
            case "reading":
                facts.readings.setdefault(name, []).append([])
            case "lost":
                facts.lost[name] += 1
            case "snapshot" | "epoch" | "aborted":
                facts.readings[name][-1].append(event)
            case "frontier":
                facts.readings[name][-1].append(event)
                self._frontiers[name] = event["lower"]
                atomic = facts.modes[name] == "atomic"
                self._starts[name] = event["positions"] if atomic else "latest"

    def goal(self) -> int:
        """The newest epoch that all publishers have given up by now."""
        return min(self._newest.values(), default=-1)

    def amiss(self, goal: int) -> str:
        """Which reader has not got to `goal`; "" if all have."""
        for name in self.facts.modes:
            told = self._frontiers.get(name)
            if told is None or any(epoch <= goal for epoch in told):
                return f"{name} was told {told}, and epoch {goal} is given up by all"
        return ""

    async def read_truth(self, client: Client) -> None:
        """Read all epochs, for the judge."""
        found: dict[int, list[str]] = {}
        async with client.history(f"{SPACE}/#", epochs="atomic") as items:
            async for item in items:
                match item:
                    case EpochBatch(epoch=(epoch,)):
                        found[epoch] = [message.payload.decode() for message in item.messages]
                    case Frontier():
                        continue
        self.facts.truth = found
