"""``run.py test``: which tests run together, and what its exit status tells."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Iterator
from types import ModuleType
from typing import NoReturn

import pytest

from tests.servers import ROOT


@pytest.fixture
def run_py() -> ModuleType:
    """The commands of ``run.py``, which itself only looks at the Python."""
    return importlib.import_module("scripts.setting_up.commands")


class Pytest:
    """Stands in for pytest: ends with one given status after the other."""

    def __init__(self, *statuses: int) -> None:
        self.statuses: Iterator[int] = iter(statuses)
        self.marks: list[str] = []

    def __call__(self, *arguments: str) -> int:
        self.marks.append(arguments[-1])
        return next(self.statuses)


@pytest.mark.parametrize(
    ("statuses", "status"),
    [
        ((0, 0), 0),
        ((1, 0), 1),
        ((0, 1), 1),
        ((3, 1), 3),
        ((0, 5), 0),
        ((5, 0), 0),
        ((5, 5), 5),
        ((2,), 2),
        ((130,), 130),
    ],
    ids=str,
)
def test_the_first_failure_counts_and_an_interrupt_ends_the_run(
    run_py: ModuleType, monkeypatch: pytest.MonkeyPatch, statuses: tuple[int, ...], status: int
) -> None:
    tool = Pytest(*statuses)
    monkeypatch.setattr(run_py, "run_tool", tool)
    assert run_py.run_tests(fast=False) == status
    assert tool.marks == ["not quiet", "quiet"][: len(statuses)]


def test_the_summary_names_both_passes(
    run_py: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_py, "run_tool", Pytest(0, 1))
    run_py.run_tests(fast=False)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "run.py: tests: side by side passed in 0 s, one by one failed with status 1 in 0 s"


def test_the_fast_suite_leaves_out_every_marker_but_quiet(
    run_py: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        markers = tomllib.load(file)["tool"]["pytest"]["ini_options"]["markers"]
    assert {*run_py.SLOW_SUITES} == {marker.split(":")[0] for marker in markers} - {"quiet"}
    tool = Pytest(0, 0)
    monkeypatch.setattr(run_py, "run_tool", tool)
    run_py.run_tests(fast=True)
    for marks in tool.marks:
        assert all(f" and not {suite}" in marks for suite in run_py.SLOW_SUITES)


def test_arguments_go_to_pytest_as_they_are_and_without_them_tests_run_side_by_side(
    run_py: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[tuple[str, ...]] = []

    def become(*command: str) -> NoReturn:
        became.append(command)
        raise SystemExit

    monkeypatch.setattr(run_py, "become", become)
    monkeypatch.setattr(run_py, "set_up", lambda _profile: None)
    monkeypatch.setattr(run_py, "provide_redis7", lambda: "redis-server")
    monkeypatch.setattr(run_py, "provide_mosquitto", lambda: "mosquitto")
    monkeypatch.setattr(run_py, "provide_prometheus", lambda: "prometheus")
    monkeypatch.setattr(run_py, "provide_browser", lambda: None)
    monkeypatch.setattr(run_py, "provide_lowest", lambda: "lowest")
    side_by_side: list[bool] = []

    def run_tests(*, fast: bool) -> int:
        side_by_side.append(fast)
        return 0

    monkeypatch.setattr(run_py, "run_tests", run_tests)
    monkeypatch.setattr(run_py, "check_sources", lambda: 0)
    for name in (
        run_py.REDIS_VARIABLE, run_py.MOSQUITTO_VARIABLE, run_py.PROMETHEUS_VARIABLE, run_py.LOWEST_VARIABLE,
    ):  # fmt: skip
        monkeypatch.setenv(name, "")
    with pytest.raises(SystemExit):
        run_py.main(["test", "tests/leader", "-k", "poison"])
    assert became == [("python", "-m", "pytest", "tests/leader", "-k", "poison")]
    for words in (["test"], ["test", "--fast"], ["check"], ["check", "--no-tests"]):
        assert run_py.main(words) == 0
    assert side_by_side == [False, True, False]
    assert len(became) == 1


def test_what_it_runs_keeps_compiled_modules(run_py: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    environment = run_py.environment()
    assert "PYTHONDONTWRITEBYTECODE" not in environment
    assert environment["PYTHONHASHSEED"] == "7"


def test_strings_hash_alike_in_all_workers(run_py: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    assert run_py.environment()["PYTHONHASHSEED"] == "0"
