"""The great moments of a group as readable text.

``REWRITE_TRANSCRIPTS=1 pytest tests/leader/test_transcripts.py`` writes them anew; review them as diffs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from streamlease.protocol.cuts import CutRange, Ranges
from streamlease.protocol.messages import FinishCut, FixCut, ResumeCut
from tests.leader.transcript import GROUP, Conversation

FOLDER = Path(__file__).parent / "transcripts"


def first_grant() -> Conversation:
    talk = Conversation("s.0.0", "s.0.1")
    talk.join("anna")
    talk.wait(100)
    talk.consume("anna", "s.0.0", 4)
    return talk


def hand_over_on_join() -> Conversation:
    talk = first_grant()
    talk.join("bert")
    talk.hold.add("anna")
    talk.wait(1300)
    talk.say("the session of anna finishes its work on s.0.1")
    talk.consume("anna", "s.0.1", 9, final=True)
    return talk


def failover() -> Conversation:
    talk = first_grant()
    talk.crash()
    talk.wait(500)
    talk.begin()
    talk.wait(3000)
    talk.join("anna-2", name="anna", attempt=2)
    talk.consume("anna-2", "s.0.0", 6)
    return talk


def eviction_with_open_cut() -> Conversation:
    talk = Conversation("s.0.0")
    talk.join("anna")
    talk.wait(100)
    ranges = Ranges.of((CutRange(stream="s.0.0", lease_epoch=1, start=0, end=50),))
    talk.ask(
        "driver-a", FixCut(group=GROUP, session="session-anna", arrival=1, cut=1, finished=0, ranges=ranges)
    )
    talk.kill("anna")
    talk.wait(200)
    talk.join("bert")
    talk.wait(10_000)
    talk.say("the session of bert wants more than anna's cut had; the one of anna comes too late")
    ranges = Ranges.of((CutRange(stream="s.0.0", lease_epoch=2, start=0, end=80),))
    talk.ask(
        "driver-b", FixCut(group=GROUP, session="session-bert", arrival=1, cut=1, finished=0, ranges=ranges)
    )
    talk.ask("driver-a", ResumeCut(group=GROUP, session="session-anna", arrival=1, cut=1))
    talk.ask("driver-a", FinishCut(group=GROUP, session="session-anna", arrival=1, finished=1))
    talk.ask("driver-b", FinishCut(group=GROUP, session="session-bert", arrival=1, finished=1))
    return talk


def take_over_by_name() -> Conversation:
    talk = Conversation("s.0.0")
    talk.join("anna", name="slot-0", session="run-1", arrival=1)
    talk.wait(100)
    talk.join("anna-2", name="slot-0", session="run-2", arrival=2)
    talk.say("the first run tries again, but it is the older one")
    talk.join("anna-3", name="slot-0", session="run-1", arrival=1, attempt=2)
    return talk


def unsubscribe() -> Conversation:
    talk = Conversation("s.0.0", "s.0.1")
    talk.join("anna")
    talk.join("bert")
    talk.wait(100)
    talk.consume("anna", "s.0.0", 3)
    talk.leave("anna")
    talk.leave("bert")
    return talk


def next_generation() -> Conversation:
    talk = Conversation("s.0.0", "s.0.1")
    talk.join("anna")
    talk.wait(100)
    talk.consume("anna", "s.0.0", 3)
    talk.seal({"s.0.0": 3, "s.0.1": 5}, {"s.1.0": ("s.0.0",), "s.1.1": ("s.0.1",)})
    talk.wait(200)
    talk.say("the leader is lost while s.0.1 is at its end, but not given back")
    talk.hold.add("anna")
    talk.consume("anna", "s.0.1", 5)
    talk.crash()
    talk.wait(3500)
    talk.begin()
    talk.hold.clear()
    talk.join("anna-2", name="anna", session="session-anna", attempt=2)
    talk.wait(200)
    talk.say("the former generation is dropped")
    for stream in ("s.0.0", "s.0.1"):
        del talk.streams[stream]
    talk.ends, talk.predecessors = {}, {}
    talk.list_streams()
    return talk


SCENES: list[Callable[[], Conversation]] = [
    first_grant,
    hand_over_on_join,
    failover,
    eviction_with_open_cut,
    take_over_by_name,
    unsubscribe,
    next_generation,
]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_the_conversation_is_as_written_down(scene: Callable[[], Conversation]) -> None:
    path = FOLDER / f"{scene.__name__}.txt"
    text = scene().text
    if os.environ.get("REWRITE_TRANSCRIPTS") == "1":
        path.write_text(text)
    assert path.read_text() == text


def test_every_transcript_has_its_scene() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == {scene.__name__ for scene in SCENES}
