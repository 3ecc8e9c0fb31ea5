"""What is left of an open cut, and how it is written."""

from __future__ import annotations

from streamlease.leader.core.state.group_cuts import SessionCuts
from streamlease.leader.core.state.open_ranges import OpenRanges
from streamlease.protocol.cuts import CutRange, Ranges

CUT = Ranges.of([CutRange("s.0.0", 1, 0, 5), CutRange("s.0.1", 2, 3, 4), CutRange("s.0.2", 1, 7, 9)])


def test_a_whole_cut_is_the_ranges_that_it_was_opened_with() -> None:
    cut = OpenRanges(CUT)
    assert cut.left is CUT
    assert "s.0.1" in cut
    assert "s.0.3" not in cut
    assert cut.left is CUT, "looking for a stream changes nothing"
    assert list(cut) == ["s.0.0", "s.0.1", "s.0.2"]


def test_a_stream_leaves_once() -> None:
    cut = OpenRanges(CUT)
    assert cut.leave("s.0.1") == 4
    assert cut.leave("s.0.1") is None
    assert (len(cut), cut.left) == (2, (CUT[0], CUT[2]))
    assert cut.leave("s.0.0") == 5
    assert cut.leave("s.0.2") == 9
    assert not cut
    assert cut.left == ()
    assert CUT[1].stream == "s.0.1", "what was fixed stays as it was"


def test_what_is_left_is_what_is_written() -> None:
    cuts = SessionCuts(cut=1, ranges=OpenRanges(CUT))
    cuts.ranges.leave("s.0.0")
    written = cuts.model_dump_json()
    columns = '"streams":["s.0.1","s.0.2"],"lease_epochs":[2,1],"starts":[3,7],"ends":[4,9]'
    assert f'"ranges":{{{columns}}}' in written
    assert SessionCuts.model_validate_json(written) == cuts
