"""The real shells in the fast suite: some seeds, what must happen in them, and planted bugs to be found.

One seed is one group with 1 to 14 streams, up to three leader hosts (or leaders in the programs' own
processes), up to four programs and an operator, through 8 to 25 seconds of virtual time with the faults that
the seed drew, and then without faults until all is well. See docs/reliability.md.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.shells.bugs import PLANTED, RARE
from tests.shells.world import run
from tests.simulation.judge import Violation

SEEDS = range(1, 21)

MUST_HAPPEN = (
    "a clean hand-over",
    "a command arrives after its sender gave it up",
    "a consumer goes on where it was",
    "a host drains",
    "a leader is spawned",
    "a lease is ended without its owner",
    "a letter cannot be parsed",
    "a letter is lost",
    "a process is cut off",
    "a recovery",
    "a session takes its streams back",
    "a snapshot",
    "a take-over",
    "an answer is lost after the command was done",
    "an operator is answered",
)


@pytest.mark.timeout(600)
def test_every_seed_keeps_the_invariants_and_heals() -> None:
    sometimes: Counter[str] = Counter()
    for seed in SEEDS:
        try:
            world = run(seed)
        except Violation as violation:
            pytest.fail(f"seed {seed}: {violation}; see 'python -m tests.shells --show {seed}'")
        sometimes += world.sometimes
        if seed % 10 == 0:
            assert run(seed).kernel.digest() == world.kernel.digest(), f"seed {seed} is not deterministic"
    assert [name for name in MUST_HAPPEN if not sometimes[name]] == []


@pytest.mark.parametrize("bug", sorted(PLANTED.keys() - RARE))
@pytest.mark.timeout(600)
def test_a_planted_bug_is_found_within_seeds_1_to_300(bug: str) -> None:
    with PLANTED[bug]():
        for seed in range(1, 301):
            try:
                run(seed)
            except (Violation, KeyError, AssertionError):
                return
    pytest.fail(f"no seed finds that {PLANTED[bug].__doc__}")
