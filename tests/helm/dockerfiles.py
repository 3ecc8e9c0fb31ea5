"""Reads the Dockerfile, as far as the tests need it: stages, instructions, exec forms."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Stage:
    """One ``FROM`` and the instructions below it, in order."""

    base: str
    name: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, keyword: str) -> list[str]:
        return [text for word, text in self.instructions if word == keyword]

    def last(self, keyword: str) -> str:
        return self.all(keyword)[-1]

    def exec_form(self, keyword: str) -> list[str]:
        """ENTRYPOINT or CMD. The shell form is an error: a shell would keep SIGTERM from the program."""
        words: list[str] = json.loads(self.last(keyword))
        return words

    def environment(self) -> dict[str, str]:
        pairs = (pair.partition("=") for text in self.all("ENV") for pair in shlex.split(text))
        return {name: value for name, _, value in pairs}


def stages(path: Path = ROOT / "Dockerfile") -> list[Stage]:
    """The stages of the Dockerfile; build arguments of ``FROM`` lines are filled in with their defaults."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    arguments: dict[str, str] = {}
    found: list[Stage] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        keyword, _, rest = line.partition(" ")
        rest = rest.strip()
        if keyword == "FROM":
            base, _, name = rest.partition(" AS ")
            found.append(Stage(re.sub(r"\$\{(\w+)\}", lambda hit: arguments[hit[1]], base), name))
        elif found:
            found[-1].instructions.append((keyword, rest))
        elif keyword == "ARG":
            name, _, default = rest.partition("=")
            arguments[name] = default
    return found
