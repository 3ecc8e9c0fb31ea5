"""Folders of programs: removed at the end, and of dead executors at the next start; never of who lives."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streamlease.executor.run_folders import make, remove, remove_left, run_name

QUERY = "0123456789abcdef"


def test_what_is_left_of_the_dead_goes_and_what_somebody_runs_stays(tmp_path: Path) -> None:
    living = tmp_path / run_name(QUERY, "a" * 24, 0)
    dead = tmp_path / run_name(f"{QUERY}.2", "b" * 24, 1)
    lock = make(living)
    (living / "job.py").touch()
    os.close(make(dead))  # as of a process that was killed
    (dead / "large.bin").touch()
    without = tmp_path / run_name(QUERY, "c" * 24, 0)
    without.mkdir()
    of_others = [tmp_path / "notes.txt", tmp_path / ".alive", tmp_path / f"{QUERY}_x"]
    for one in of_others:
        one.touch()
    remove_left(tmp_path)
    assert {*tmp_path.iterdir()} == {living, Path(f"{living}.lock"), *of_others}
    assert (living / "job.py").exists()
    remove(living, lock)
    assert {*tmp_path.iterdir()} == {*of_others}


def test_what_cannot_be_removed_is_said_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    strange, dead = (tmp_path / run_name(QUERY, life * 24, 0) for life in "ab")
    Path(f"{strange}.lock").mkdir()
    dead.mkdir()
    remove_left(tmp_path)
    assert [*tmp_path.iterdir()] == [Path(f"{strange}.lock")]
    assert f"what a dead executor left in {strange} cannot be removed" in caplog.text


def test_a_lock_is_held_as_long_as_one_of_those_lives_who_have_it(tmp_path: Path) -> None:
    folder = tmp_path / run_name(QUERY, "a" * 24, 0)
    lock = make(folder)
    guards = os.dup(lock)
    os.close(lock)  # the executor was killed, and its guard lets the program end
    remove_left(tmp_path)
    assert folder.exists()
    os.close(guards)
    remove_left(tmp_path)
    assert not [*tmp_path.iterdir()]
