"""The rig in the fast suite: 300 seeds, what must happen in them, and planted bugs that must be found.

One seed is one group with 1 to 12 streams, up to three leader hosts (or leaders in the consumers' own
processes) and up to five consumers, through 8 to 25 seconds of virtual time with the faults that the seed
drew, and then without faults until all is well. See docs/reliability.md.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.__main__ import run
from tests.simulation.bugs import PLANTED
from tests.simulation.judge import Violation
from tests.simulation.kernel import Kernel, Process

SEEDS = range(1, 301)

MUST_HAPPEN = (
    "a clean hand-over",
    "a clock is set",
    "a command arrives after its sender gave it up",
    "a commit is refused: the stream was taken away",
    "a consumer goes on where it was",
    "a consumer has seen a term that the store has lost",
    "a consumer is replaced by its namesake",
    "a cut that no checkpoint names is taken up",
    "a failover that loses writes",
    "a failure is answered: passed",
    "a failure is answered: retry",
    "a failure is answered: stopped",
    "a failure is counted: dead_letter",
    "a failure is counted: retry",
    "a failure is counted: stop",
    "a generation follows another",
    "a generation is dropped",
    "a grant is sent again",
    "a host drains",
    "a late letter of somebody who has ended",
    "a leader gives up a term of another lineage",
    "a leader in a consumer's own process",
    "a leader is fenced",
    "a leader refuses an event",
    "a lease is ended without its owner",
    "a letter comes twice",
    "a letter is lost",
    "a letter to a mailbox that is gone",
    "a message comes twice",
    "a message comes twice because a failover lost writes",
    "a pause of a leader",
    "a process is cut off",
    "a program fails at a message",
    "a query ends with Fenced",
    "a restart of the store",
    "a session takes its streams back",
    "a space is sealed",
    "a stream is finished",
    "a stream is granted after those that it follows",
    "a stream waits again for one that was reset",
    "a take-over",
    "a take-over by name",
    "a word about an ended lease is refused",
    "an answer is lost after the command was done",
    "an older checkpoint is restored",
    "an open cut is waited for",
    "an operator asks twice",
    "an operator is refused",
    "an operator's dead_letter",
    "an operator's drain",
    "an operator's pause",
    "an operator's rebalance",
    "an operator's release",
    "an operator's reset",
    "an operator's resume",
    "an operator's retry",
    "an operator's step_down",
    "crash after a write",
    "crash before a write",
    "invalidated: replaced",
    "invalidated: revocation_timeout",
    "invalidated: stale",
    "invalidated: stepped_down",
    "invalidated: unknown",
    "new streams appear",
    "progress is reset back",
    "progress is reset on",
    "two candidates at once",
)


@pytest.mark.timeout(1200)
def test_every_seed_keeps_the_invariants_and_heals() -> None:
    sometimes: Counter[str] = Counter()
    for seed in SEEDS:
        try:
            world = run(seed)
        except Violation as violation:
            pytest.fail(f"seed {seed}: {violation}; see 'python -m tests.simulation --show {seed}'")
        sometimes += world.sometimes
        if seed % 20 == 0:
            assert run(seed).kernel.digest() == world.kernel.digest(), f"seed {seed} is not deterministic"
    assert [name for name in MUST_HAPPEN if not sometimes[name]] == []


@pytest.mark.parametrize("bug", PLANTED)
@pytest.mark.timeout(1200)
def test_a_planted_bug_is_found_within_seeds_1_to_2000(bug: str) -> None:
    with PLANTED[bug]():
        for seed in range(1, 2001):
            try:
                run(seed)
            except (Violation, KeyError, AssertionError):
                return
    pytest.fail(f"no seed finds that {PLANTED[bug].__doc__}")


def test_a_paused_process_goes_on_with_everything_that_waited_in_order() -> None:
    kernel = Kernel(1)
    process = Process(kernel, "p", rate=2.0, offset=7)
    seen: list[tuple[int, int]] = []
    for ms in (20, 40, 100):
        process.after(ms, lambda ms=ms: seen.append((ms, kernel.now)))  # type: ignore[misc]
    kernel.run(11)
    process.pause(30)
    kernel.run(200)
    assert seen == [(20, 10), (40, 41), (100, 50)]
    assert process.clock() == 407
    process.after(1, lambda: seen.append((0, 0)))
    process.end()
    kernel.run(300)
    assert len(seen) == 3
