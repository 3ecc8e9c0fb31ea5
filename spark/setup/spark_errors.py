"""What failed, in a line, out of what Spark makes of it. Pure."""

from __future__ import annotations

import re

LONGEST = 300
"""Characters of a line: a task may have said anything."""

_NAMED = re.compile(r"(?!org\.|java|py4j)[A-Za-z_][\w.]*: .+", re.ASCII)
_JAVA = ": "
"""With which py4j begins the line that names Java's error."""


def cause_of(error: BaseException) -> str:
    """The line that names the error: of a task's traceback in Python, or else of Java, or else the first."""
    lines = str(error).splitlines()
    named = [line for line in lines if _NAMED.match(line)]
    java = [line.removeprefix(_JAVA) for line in lines if line.startswith(_JAVA)]
    return (named[-1:] or java or lines or [type(error).__name__])[0][:LONGEST]
