"""Files of offsets: what they say, and which line is wrong."""

from __future__ import annotations

import pytest

from streamlease.admin.groups.reset_file import Wish, parse
from streamlease.protocol.errors import InvalidInput

BOTH = [("s.0.0", 5), ("s.0.1", 7)]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("stream,offset\ns.0.0,5\ns.0.1,7\n", [2, 3]),
        ("s.0.0,5\n\n s.0.1 , 7", [1, 3]),
        ('{"s.0.0": 5,\n "s.0.1": 7}', [1, 2]),
        ('[{"stream": "s.0.0", "offset": 5},\n\n {"stream": "s.0.1", "offset": 7}]', [1, 3]),
        ('{"stream": "s.0.0", "offset": 5}\n{"stream": "s.0.1", "offset": "7"}\n', [1, 2]),
    ],
)
def test_all_forms_say_the_same(text: str, lines: list[int]) -> None:
    wishes = [Wish(line, stream, at) for line, (stream, at) in zip(lines, BOTH, strict=True)]
    assert parse("f", text) == wishes


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "f, line 1: there is no stream"),
        ("s.0.0,5\ns.0.1", "f, line 2: 's.0.1' is not of the form STREAM,OFFSET"),
        ("s.0.0,-1", "f, line 1: '-1' is no offset"),
        ("s.0.0,99999999999999999999", "is no offset"),
        ('{"s.0.0": 5,\n "s.0.1": true}', "f, line 2: True is no offset"),
        ('{"s.0.0": 5,\n "s.0.0": 6}', "f, line 2: stream s.0.0 stands in line 1 already"),
        ('[{"stream": "s.0.0", "offset": 5},\n {"stream": "s.0.1"}]', "f, line 2: the keys are stream"),
        ("[1]", "f, line 1: 1 is no object"),
        ('{"s.0.0": 5,\n oops}', "f, line 2: this is no JSON"),
        ('{"": 5}', "f, line 1: '' is no stream"),
    ],
)
def test_an_error_names_its_line_and_says_that_nothing_was_changed(text: str, why: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse("f", text)
    assert why in str(caught.value)
    assert str(caught.value).endswith("; nothing was changed")
