"""One meaning for each name."""

from __future__ import annotations

import ast
from collections import Counter

from tests.house.plan import MODULES

SAME_THING = {
    "Batch", "Catalog", "Client", "Collection", "EpochPart", "EpochPublisher",  # the blocking twins
    "PageFollower", "GatewayClient",  # these, too
    "EpochSubscription", "PlainSubscription", "Publisher", "Serving", "Subscription",  # these too
    "DeadLetter", "Failed", "NotLeader", "Received", "Tick",  # the event, message or record of the same thing
}  # fmt: skip
"""Names that two modules may give to a class. The answers of commands are named as what they tell."""


def test_no_two_rooms_give_one_name_to_two_things() -> None:
    found: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        if module != "streamlease.admin.answers":
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found.setdefault(node.name, []).append(module)
    twice = {name: modules for name, modules in found.items() if len(modules) > 1 and name not in SAME_THING}
    assert twice == {}, "one name, one meaning: rename one of them, or say above that both are the same thing"


RECURRING = {
    "__init__": "a room", "__main__": "what 'python -m' runs", "keys": "the names of a room's keys in Redis",
    "metrics": "what a room counts for Prometheus", "traces": "what a room tells OpenTelemetry",
    "lease": "a lease, at the leader and at the borrower",
    "leases": "all of them, there and there",
    "machine": "the machine of the leader and that of the borrower", "events": "what each is stepped with",
    "blocking": "the twin of a client, for programs without an event loop",
    "spaces": "what there is, and the facts about it", "groups": "the same", "hosts": "the same",
}  # fmt: skip
"""Names that files of several rooms may have, and what each such file is."""


def test_files_of_one_name_are_the_same_thing() -> None:
    stems = Counter(path.stem for path in MODULES.values())
    again = {stem for stem, count in stems.items() if count > 1}
    assert again - RECURRING.keys() == set(), "rename one of them, or say above that both are the same thing"
    assert RECURRING.keys() - again - {"__main__"} == set(), "no two files have that name any more"
