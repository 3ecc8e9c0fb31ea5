"""Write ``docs/python.md``: what programs call, with signatures and docstrings as they stand in the code.

Run it after a change of one: ``.venv/bin/python scripts/python_reference.py``. `PAGE_PARTS` says what is on
the page: a name that is not there any more, or that has no docstring, is an error.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "python.md"
HEAD = """\
# Python

Written by `scripts/python_reference.py` from the code: what programs call. `streamlease.connect` gives a
client for `asyncio`, `streamlease.blocking.connect` [its twin](#blocking-programs) for programs without.
Whatever Streamlease raises is a [`StreamleaseError`](#errors). What it is all for is told in
[concepts](concepts.md), [consuming](consuming.md), [epochs](epochs.md), [collections](collections.md),
[services](services.md), [queries](queries.md) and [the catalog](catalog.md); for Spark in [Spark](spark.md),
for other gateways' clients in [HTTP clients](http-clients.md).
"""


class Shown(NamedTuple):
    """A class, function or dictionary of options on the page."""

    path: str
    """Below ``streamlease``."""
    members: tuple[str, ...] = ()
    """Which of its own are shown, in this order; of none, its fields and all that is public."""
    title: str = ""
    only_fields: bool = False


PAGE_PARTS: dict[str, tuple[Shown, ...]] = {
    "Connecting": (
        Shown("agent.client.connect"),
        Shown(
            "agent.client.Client",
            (
                *("create_space", "alter_space", "seal_space", "publisher", "subscribe", "listen", "history"),
                *("next_offsets", "epoch_publisher", "collection", "serve", "call", "catalog", "lookup"),
                *("act", "command", "drain_host", "close"),
            ),
        ),
        Shown("agent.operator_acts.ActOptions"),
    ),
    "Spaces and groups": (
        Shown("streams.spaces.space_options.SpaceOptions"),
        Shown("streams.spaces.space_options.SpaceAlteration"),
        Shown("streams.spaces.retention.Retention", only_fields=True),
        Shown("streams.spaces.archive_settings.ArchiveSettings", only_fields=True),
        Shown("streams.spaces.spaces.SpaceStore", ("create", "get", "list", "delete"), "`client.spaces`"),
        Shown("registry.groups.Groups", ("declare", "get", "alter", "list"), "`client.groups`"),
        Shown("protocol.group_options.GroupOptions", only_fields=True),
    ),
    "Publishing": (
        Shown(
            "streams.publish.publisher.Publisher",
            (
                *("send", "submit", "send_many", "submit_many", "send_batch", "submit_batch"),
                *("flush", "close", "buffered_bytes"),
            ),
        ),
        Shown("streams.publish.inputs.PublisherOptions"),
        Shown("streams.publish.receipts.Receipt"),
        Shown("streams.publish.receipts.Receipts"),
    ),
    "Consuming": (
        Shown("agent.subscription.SharedReader", ("streams", "error", "flush", "close")),
        Shown(
            "agent.batch.Batch",
            ("stream", "start", "end", "messages", "to_arrow", "commit", "commit_soon", "fail"),
        ),
        Shown("streams.entries.delivered.Message"),
        Shown("agent.plain.listening.PlainSubscription", ("positions", "ends")),
        Shown("agent.plain.selecting.PlainBatch"),
    ),
    "Epochs and collections": (
        Shown(
            "streams.epochs.epoch_publisher.EpochPublisher",
            (
                *("frontier", "send", "submit", "send_many", "submit_many", "send_batch", "submit_batch"),
                *("advance", "flush", "close", "abandon", "buffered_bytes"),
            ),
        ),
        Shown("agent.epochs.epoch_reading.EpochSubscription", ("positions",)),
        Shown("agent.epochs.epoch_items.EpochBatch"),
        Shown("agent.epochs.epoch_items.Frontier"),
        Shown("agent.epochs.epoch_items.Snapshot"),
        Shown("agent.epochs.epoch_items.Aborted"),
        Shown("agent.epochs.group_reader.EpochGroupReader", ("streams", "flush", "close")),
        Shown("agent.epochs.group_reader.EpochPart"),
        Shown("agent.collections.collection.Collection", ("items", "positions", "frontier")),
    ),
    "The catalog": (Shown("catalog.followed.Catalog"), Shown("catalog.feed.CatalogChange")),
    "Services and queries": (
        Shown("services.service.Serving"),
        Shown("services.client_services.ServeOptions"),
        Shown("services.client_services.CallOptions"),
        Shown("queries.join_query.join"),
        Shown("queries.join_query.JoinedQuery"),
    ),
    "Metrics": (Shown("agent.membership.metrics.serve_metrics"),),
    "Clients of a gateway": (
        Shown("http.gateway_client.connect", (), "`http.connect`"),
        Shown("http.gateway_client.GatewayClient", ("publish", "publish_many", "since", "follow", "close")),
        Shown("http.core.publish_requests.MessageToPublish"),
        Shown("http.core.publish_requests.PublishResult"),
        Shown("http.core.gateway_pages.GatewayPage"),
        Shown("http.core.gateway_pages.GatewayMessage"),
        Shown("http.page_following.PageFollower", ("counts", "receive", "close")),
        Shown("http.page_following.Webhook"),
        Shown("http.channel_client.ChannelClient", ("subscribe", "follow", "unsubscribe", "keys", "cursor")),
    ),
    "Testing": (
        Shown("testing.memory.memory_connection.connect", (), "`testing.connect`"),
        Shown("testing.memory.memory_server.MemoryServer", ("fail_over", "restart")),
        Shown("testing.timelines.loops.Timeline", ("now", "clock", "process", "run", "after")),
        Shown("testing.timelines.loops.Process", ("start", "pause", "kill")),
        Shown("testing.memory.sockets.Line"),
        Shown("testing.memory.sockets.SlowLine", ("sending", "replying")),
    ),
    "Around Spark": (
        Shown("spark.environment.configure_environment"),
        Shown("spark.continuous.continuous"),
        Shown("spark.setup.spark_ui.told_in_ui"),
        Shown("spark.setup.spark_metrics.told_in_metrics"),
        Shown("spark.archiving_job.archive_with_spark"),
    ),
}


RAISED_BY = {
    "agent.client.Client.create_space": "streams.spaces.spaces.SpaceStore.create",
    "agent.client.Client.alter_space": "streams.epochs.sealing.change_space",
    "agent.client.Client.seal_space": "streams.epochs.sealing.seal_space",
}
"""Whose errors those of a method are."""


def reference() -> str:
    """The whole page."""
    import griffe

    package = griffe.load("streamlease", search_paths=[ROOT / "src"], allow_inspection=False)
    parts = [HEAD]
    for title, shown in PAGE_PARTS.items():
        parts += [f"## {title}\n", *(text for one in shown for text in _entry(package, one))]
    parts += [_blocking(package), *_errors(package)]
    return "\n".join(parts)


def _entry(package: Any, shown: Shown) -> Iterator[str]:
    thing = package[shown.path]
    yield f"### {shown.title or _code(thing.name)}\n"
    if thing.is_function:
        yield _signature(thing)
    yield _docstring(thing, whole=shown.only_fields or not thing.is_class)
    if thing.is_class:
        members = [thing[name] for name in shown.members] or list(_public(package, thing))
        fields = [one for one in members if _is_field(one)]
        yield from _fields(fields)
        for member in members:
            if member not in fields and not shown.only_fields:
                yield f"#### `{thing.name}.{member.name}`\n"
                yield _signature(member)
                yield _docstring(member)
                raising = RAISED_BY.get(f"{shown.path}.{member.name}")
                if raising is not None:
                    _, found, raises = package[raising].docstring.value.partition("\nRaises:\n")
                    assert found, raising
                    yield from _block(f"Raises:\n{raises}")


def _public(package: Any, thing: Any) -> Iterator[Any]:
    """What a class declares, after the fields of those that it extends."""
    for base in map(str, thing.bases):
        path = str(thing.resolve(base)) if base.isidentifier() else base
        if path.startswith("streamlease."):
            inherited = _public(package, package[path.removeprefix("streamlease.")])
            yield from (one for one in inherited if _is_field(one))
    for name, member in thing.members.items():
        if name.startswith("_") or member.is_alias:
            continue
        constant = member.is_attribute and (
            member.labels == {"class-attribute"} or (_is_field(member) and member.annotation is None)
        )
        if not constant and (member.docstring or (_is_field(member) and _is_record(package, thing))):
            yield member


def _is_field(member: Any) -> bool:
    return member.is_attribute and "property" not in member.labels


def _is_record(package: Any, thing: Any) -> bool:
    """Whether all that is declared in the class are its fields."""
    bases = {*map(str, thing.bases)}
    above = [thing.resolve(base) for base in bases if base.isidentifier()]
    own = [package[str(path).removeprefix("streamlease.")] for path in above if "streamlease." in str(path)]
    return (
        "dataclass" in thing.labels
        or bases & {"TypedDict", "NamedTuple", "BaseModel"} != set()
        or any(_is_record(package, one) for one in own)
    )


def _fields(fields: list[Any]) -> Iterator[str]:
    if fields:
        yield "| | | |\n|---|---|---|"
        for one in fields:
            kind = _code(str(one.annotation))
            default = "" if one.value is None else f", `{one.value}` if not given"
            meaning = _line(_docstring(one)) if one.docstring else ""
            yield f"| `{one.name}` | {kind}{default} | {meaning} |"
        yield ""


def _signature(thing: Any) -> str:
    if thing.is_attribute:
        return f"```python\n{thing.name}: {thing.annotation}\n```\n"
    parameters = [one for one in thing.parameters if one.name not in ("self", "cls")]
    written: list[str] = []
    for place, one in enumerate(parameters):
        kind = one.kind.value
        before = parameters[place - 1].kind.value if place else ""
        if kind == "keyword-only" and before not in ("keyword-only", "variadic positional"):
            written.append("*")
        if before == "positional-only" and kind != "positional-only":
            written.append("/")
        star = {"variadic positional": "*", "variadic keyword": "**"}.get(kind, "")
        default = "" if one.default is None or star else f" = {one.default}"
        written.append(f"{star}{one.name}: {one.annotation}{default}")
    begin = f"{'async ' if 'async' in thing.labels else ''}def {thing.name}("
    end = f") -> {thing.returns}"
    line = begin + ", ".join(written) + end
    if len(line) > 100:
        line = begin + "".join(f"\n    {one}," for one in written) + "\n" + end
    return f"```python\n{line}\n```\n"


SECTION = re.compile(r"(Args|Returns|Raises|Yields)(?::[ ]*|[ ]+(?=[A-Z]))(.*)")
ITEM = re.compile(r"([\w*]+(?:, [\w*]+)*): (.*)")


def _docstring(thing: Any, *, whole: bool = True) -> str:
    """A docstring in Markdown: paragraphs, code, and lists of arguments and errors.

    Args:
        whole: False: without these lists, of a class that programs do not make themselves.
    """
    if thing.docstring is None:
        raise SystemExit(f"python_reference: {thing.path} has no docstring")
    text = re.sub(r"[;,] as `(sealing|SpaceStore)\.\w+`(?=\.)", "", thing.docstring.value)
    text = re.sub(r"(?::\w+:)?(`+)~?(.+?)\1", r"`\2`", text, flags=re.DOTALL)
    text = re.sub(rf"\n(?={SECTION.pattern}\n)", "\n\n", text)
    parts = re.split(r"\n\s*\n", text)
    if not whole:
        parts = [part for part in parts if not SECTION.fullmatch(part.partition("\n")[0])]
    return "\n".join(block for part in parts for block in _block(part))


def _block(part: str) -> Iterator[str]:
    first, _, rest = part.partition("\n")
    section = SECTION.fullmatch(first)
    if section is None:
        literal = part.startswith("    ")
        yield f"```python\n{dedent(part)}\n```\n" if literal else _line(part.removesuffix("::")) + "\n"
        return
    title, said = section.groups()
    if not rest.startswith("    ") or said:
        yield f"**{title}** {_line(said + ' ' + rest)}\n"
        return
    yield f"**{title}**\n"
    items: list[str] = []
    for line in dedent(rest).splitlines():
        if items and (line.startswith(" ") or not ITEM.fullmatch(line)):
            items[-1] += " " + line.strip()
        else:
            items.append(line)
    for item in items:
        named = ITEM.fullmatch(item)
        words = named and ", ".join(f"`{name}`" for name in named[1].split(", "))
        yield f"* {words}: {named[2]}" if named else f"* {item}"
    yield ""


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


def _blocking(package: Any) -> str:
    module = package["agent.blocking"]
    return f"## Blocking programs\n\n{_docstring(module)}"


def _errors(package: Any) -> Iterator[str]:
    yield "## Errors\n"
    yield "All are names of `streamlease.errors`, and a `StreamleaseError`.\n"
    yield "| error | a kind of | | the same call may succeed later |\n|---|---|---|---|"
    for name, error in package["protocol.errors"].members.items():
        if not error.is_alias and error.is_class and name != "StreamleaseError":
            bases = ", ".join(f"`{base}`" for base in error.bases if str(base) != "StreamleaseError")
            yes = "yes" if _is_retriable(package["protocol.errors"], name) else ""
            yield f"| `{name}` | {bases} | {_line(_docstring(error, whole=False))} | {yes} |"
    yield ""


def _is_retriable(module: Any, name: str) -> bool:
    error = module.members.get(name)
    if error is None:
        return False
    said = error.members.get("retriable")
    if said is not None:
        return str(said.value) == "True"
    return any(_is_retriable(module, str(base)) for base in error.bases)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from scripts.installation import require_installation

    require_installation("python_reference.py")
    PAGE.write_text(reference())
    sys.stdout.write(f"python_reference: wrote {PAGE.name}\n")
