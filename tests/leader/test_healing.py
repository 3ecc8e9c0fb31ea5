"""After Redis lost writes: no lease epoch is issued twice, and the leader learns from those who come back."""

from __future__ import annotations

import pytest

from streamlease.leader.core import healing
from streamlease.leader.core.state.records import Attested
from streamlease.protocol.ids import LEAST_LEAP
from streamlease.protocol.messages import CutFinished, CutResumed, Grant, Progress
from tests.leader.make import S0, S1, S2, Rig, finish, fix, led, only, part, progress, resume, sent, wanted

TERM = 1 + LEAST_LEAP


def seen(stream: str, lease_epoch: int, offset: int) -> Progress:
    return Progress(stream=stream, lease_epoch=lease_epoch, offset=offset)


def after_a_loss(before: Rig) -> Rig:
    """The first leader in a new lineage, with what is left of the journal."""
    rig = Rig(TERM, before.replayed(), before.leader.config, lineage="new")
    rig.journal[:0] = before.journal
    rig.streams(*before.leader.durable.streams)
    rig.effects.clear()
    return rig


def test_lease_epochs_of_a_new_lineage_are_above_the_term_that_began_it() -> None:
    rig = after_a_loss(led())
    rig.join("b9", name="n-b1", session="s-n-b1")
    assert {grant.lease_epoch for grant in sent(rig.effects, Grant)} == {TERM + 1}


def test_a_later_leader_of_the_same_lineage_goes_on_counting() -> None:
    rig = after_a_loss(led())
    rig.join("b9", name="n-b1")
    successor = Rig(TERM + 1, rig.replayed(), lineage="new")
    successor.join("b10", name="n-b1", arrival=2)
    assert {grant.lease_epoch for grant in sent(successor.effects, Grant)} == {TERM + 2}


def test_the_first_leader_of_a_group_begins_with_lease_epoch_1_whatever_the_lineage_is_called() -> None:
    assert led(lineage="any").lease_epoch(S0) == 1


def test_a_group_that_begins_with_a_leap_may_have_existed_before() -> None:
    assert led(term=TERM, lineage="any").lease_epoch(S0) == TERM + 1


def test_the_highest_committed_offset_that_anybody_has_seen_wins() -> None:
    rig = after_a_loss(led())
    rig.hear(wanted("b7", attested=(seen(S0, 1, 30), seen(S1, 4, 5))))
    rig.hear(wanted("b8", attested=(seen(S0, 1, 20),)))
    assert (rig.committed(S0), rig.committed(S1)) == (30, 5)
    assert rig.replayed() == rig.leader.durable


def test_without_a_loss_nobody_is_believed_but_the_owner() -> None:
    rig = led()
    rig.hear(wanted("b7", attested=(seen(S0, 1, 30),)))
    rig.hear(finish("s-n-b7", 1, part(S0, 1, 0, 30)))
    assert rig.committed(S0) == 0
    successor = rig.crash()
    successor.hear(wanted("b8", attested=(seen(S0, 1, 30),)))
    assert successor.committed(S0) == 0


def test_what_was_seen_under_a_lease_older_than_the_journal_knows_is_refused() -> None:
    """An operator may have reset the stream since then."""
    before = led()
    before.hear(wanted("b2", name="n-b1", arrival=2), "box-b2")
    assert before.lease_epoch(S0) == 2
    rig = after_a_loss(before)
    rig.hear(wanted("b7", attested=(seen(S0, 1, 30),)))
    assert rig.committed(S0) == 0


def test_what_was_seen_in_this_lineage_is_refused() -> None:
    rig = after_a_loss(led())
    rig.join("b9", name="n-b1")
    rig.hear(wanted("b7", attested=(seen(S0, rig.lease_epoch(S0), 30),)))
    assert rig.committed(S0) == 0


def test_a_lease_epoch_above_all_that_are_known_raises_those_to_come() -> None:
    rig = after_a_loss(led())
    rig.hear(wanted("b7", attested=(seen(S0, TERM + 500, 3),)))
    rig.join("b9", name="n-b1")
    assert (rig.lease_epoch(S0), rig.lease_epoch(S1), rig.committed(S0)) == (TERM + 501, TERM + 1, 3)


def test_streams_of_which_the_journal_has_lost_even_the_names_are_healed_once_they_are_listed() -> None:
    rig = Rig(TERM, lineage="new")
    rig.hear(wanted("b7", attested=(seen(S0, 3, 30), seen(S2, 3, 9))))
    rig.streams(S0, S1)
    assert (rig.committed(S0), rig.committed(S1)) == (30, 0)


def test_of_a_stream_that_is_not_listed_yet_every_lease_is_remembered() -> None:
    rig = Rig(TERM, lineage="new")
    rig.hear(wanted("b7", attested=(seen(S0, 3, 30), seen(S0, 5, 4))))
    rig.hear(wanted("b8", attested=(seen(S0, 3, 20),)))
    rig.streams(S0)
    assert rig.committed(S0) == 30


def test_what_was_committed_before_a_reset_that_the_journal_knows_is_refused() -> None:
    before = led()
    before.hear(wanted("b2", name="n-b1", arrival=2), "box-b2")
    rig = after_a_loss(before)
    rig.hear(wanted("b2", name="n-b1", arrival=2, attempt=2, attested=(seen(S0, 1, 11), seen(S0, 2, 4))))
    assert rig.committed(S0) == 4


def test_a_stream_that_was_forgotten_and_comes_back_has_higher_lease_epochs_and_no_past() -> None:
    rig = led()
    rig.streams(S1)
    rig.streams(S0, S1)
    rig.tick(rig.leader.config.rebalance_delay)
    rig.hear(wanted("b2", name="n-b1", arrival=2))
    rig.settle()
    assert rig.lease_epoch(S0) > 1
    rig = after_a_loss(rig)
    rig.hear(wanted("b7", attested=(seen(S0, 1, 30),)))
    assert rig.committed(S0) == 0


def test_the_first_plan_after_a_loss_waits_for_those_who_know_more() -> None:
    rig = after_a_loss(led(borrowers=()))
    rig.join("b1")
    assert not sent(rig.tick(rig.leader.config.rebalance_delay), Grant)
    assert sent(rig.tick(healing.DELAY), Grant)


def test_a_finished_cut_that_the_journal_lost_is_committed_when_its_query_says_so() -> None:
    rig = after_a_loss(led())
    rig.join("b9", name="n-b1", session="s-n-b1")
    effects = rig.hear(finish("s-n-b1", 4, part(S0, 1, 0, 12)))
    assert rig.committed(S0) == 12
    assert seen(S0, TERM + 1, 12) in only(effects, CutFinished).progress
    assert isinstance(rig.journal[-1], Attested)


def test_an_open_cut_that_the_journal_lost_is_fixed_again_as_the_checkpoint_has_it() -> None:
    rig = after_a_loss(led())
    rig.join("b9", name="n-b1", session="s-n-b1", arrival=2)
    rig.accept()
    resumed = only(
        rig.hear(resume("s-n-b1", 4, part(S0, 1, 0, 12), part(S1, 1, 3, 9), arrival=2)), CutResumed
    )
    assert [(one.stream, one.start, one.end) for one in resumed.ranges] == [(S0, 0, 12)]
    rig.hear(finish("s-n-b1", 4, arrival=2))
    assert rig.committed(S0) == 12


def test_who_comes_to_a_cut_has_finished_the_one_before_that_is_open_in_what_is_left() -> None:
    before = led()
    before.hear(fix("s-n-b1", 3, part(S0, 1, 0, 5)))
    rig = after_a_loss(before)
    rig.join("b9", name="n-b1", session="s-n-b1", arrival=2)
    rig.accept()
    resumed = only(rig.hear(resume("s-n-b1", 4, part(S0, 1, 5, 12), arrival=2)), CutResumed)
    assert [(one.stream, one.start, one.end) for one in resumed.ranges] == [(S0, 5, 12)]
    assert rig.committed(S0) == 5
    assert rig.replayed() == rig.leader.durable


@pytest.mark.parametrize("known", ["another cut is open", "somebody else has the stream", "nothing was lost"])
def test_a_cut_of_a_checkpoint_is_not_fixed_again_if_it_may_be_past(known: str) -> None:
    before = led()
    rig = before.crash() if known == "nothing was lost" else after_a_loss(before)
    if known == "somebody else has the stream":
        rig.tick(10_000)
        rig.join("b5")
        rig.tick(healing.DELAY)
        rig.accept()
        rig.tick(10_000)
        rig.tick(rig.leader.config.rebalance_delay)
    rig.join("b9", name="n-b1", session="s-n-b1", arrival=2)
    rig.settle()
    rig.accept()
    if known == "another cut is open":
        rig.hear(fix("s-n-b1", 5, part(S0, rig.lease_epoch(S0), 0, 3), arrival=2))
    resumed = only(rig.hear(resume("s-n-b1", 4, part(S0, 1, 0, 12), arrival=2)), CutResumed)
    assert resumed.ranges == ()


def test_progress_of_the_present_owner_counts_as_ever() -> None:
    rig = after_a_loss(led())
    rig.join("b9", name="n-b1")
    rig.hear(progress("b9", S0, rig.lease_epoch(S0), 7), "box-b9")
    assert rig.committed(S0) == 7
