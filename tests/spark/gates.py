"""Places where a query is held, so that a test does what it wants just there and nowhere else.

A gate is a folder. As long as there is a file ``hold-PLACE`` in it, whoever comes to PLACE writes down that
he is there (``at-PLACE``) and waits. The places are

* ``fixed``: the cut is fixed by the leader; Spark does not know it, and so the offset log does not have it;
* ``reading``: a task has read its first rows, and hands them on once it is let go; with a file
  ``break-reading`` the first attempt of each task fails there instead, behind its first rows;
* ``unsunk``: the micro-batch is in the function of `foreachBatch`, before the sink's commit;
* ``sunk``: behind the sink's commit, before the function returns, and so before the commit log; with a file
  ``break-sunk`` it fails there.

`GatedSource` is the source, with a gate at the first two; where it reads the changes of a collection, at
``reading`` only, for what is there at first as well as for the changes behind.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from streamlease.spark.collections.change_stream import ChangeStream
from streamlease.spark.collections.collection_options import CHANGES, CollectionFrame
from streamlease.spark.options import SourceOptions
from streamlease.spark.schema import stream_columns
from streamlease.spark.source import StreamleaseSource, StreamReader

Place = Literal["fixed", "reading", "unsunk", "sunk"]
PLACES: tuple[Place, ...] = ("fixed", "reading", "unsunk", "sunk")


class Gate:
    """See the module."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def hold(self, place: Place) -> None:
        """From now on, whoever comes to `place` waits there."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / f"at-{place}").unlink(missing_ok=True)
        (self.folder / f"hold-{place}").touch()

    def let_go(self, place: Place) -> None:
        """Nobody waits at `place` any more."""
        (self.folder / f"hold-{place}").unlink(missing_ok=True)

    def is_held(self, place: Place) -> bool:
        """Whether somebody waits at `place`, or did since `hold`."""
        return (self.folder / f"at-{place}").exists()

    def break_at(self, place: Place, *, on: bool = True) -> None:
        """From now on, who comes to `place` fails there; or no longer."""
        self.folder.mkdir(exist_ok=True)
        if on:
            (self.folder / f"break-{place}").touch()
        else:
            (self.folder / f"break-{place}").unlink()

    def breaks(self, place: Place) -> bool:
        """Whether it is wanted that who comes to `place` fails."""
        return (self.folder / f"break-{place}").exists()

    def note(self, place: Place, what: Any) -> None:
        """Add a line to what was seen at `place`."""
        with (self.folder / f"seen-{place}").open("a") as file:
            file.write(json.dumps(what) + "\n")

    def noted(self, place: Place) -> list[Any]:
        """All that was seen at `place`."""
        path = self.folder / f"seen-{place}"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def come_to(self, place: Place) -> None:
        """Wait here if `place` is held."""
        while (self.folder / f"hold-{place}").exists():
            (self.folder / f"at-{place}").touch()
            time.sleep(0.01)


class GatedSource(StreamleaseSource):
    """The source under the name ``gated``, with one more option, ``gate``: the folder of a `Gate`."""

    def __init__(self, options: dict[str, str]) -> None:
        self.gate = Gate(Path(options["gate"]))
        super().__init__({name: value for name, value in options.items() if name != "gate"})

    @classmethod
    def name(cls) -> str:
        return "gated"

    def streamReader(self, schema: StructType) -> StreamReader | ChangeStream:
        reader: GatedReader | GatedChanges
        if "collection" in self.options:
            reader = GatedChanges(CollectionFrame.of(self.options, schema, CHANGES))
        else:
            options = SourceOptions.parse(self.options)
            reader = GatedReader(options, stream_columns(options, schema))
        reader.gate = self.gate
        return reader


class GatedReader(StreamReader):
    """The reader of `GatedSource`."""

    gate: Gate

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "gate": self.gate}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        end = super().latestOffset(start, limit)
        if end != start:
            self.gate.come_to("fixed")
        return end

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        attempt = context.attemptNumber()
        for number, batch in enumerate(self._parts(partition)):
            self.gate.come_to("reading")
            if self.gate.breaks("reading"):
                rows = [batch.column(name).to_pylist() for name in ("stream", "offset", "payload")]
                told = [[s, o, p.decode()] for s, o, p in zip(*rows, strict=True)]
                self.gate.note("reading", [partition.work.cut, partition.work.slot, attempt, told])  # type: ignore[attr-defined]
                if attempt == 0 and number:
                    raise RuntimeError("this task fails at its first attempt, in the middle")
            yield batch

    def _parts(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches, each in two if tasks are to fail in the middle."""
        for batch in super().read(partition):
            half = batch.num_rows // 2 if self.gate.breaks("reading") else 0
            if half:
                yield batch.slice(0, half)
            yield batch.slice(half)


class GatedChanges(ChangeStream):
    """The reader of `GatedSource` where it is a collection: a task is held behind half of its rows."""

    gate: Gate

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "gate": self.gate}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in super().read(partition):
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            self.gate.come_to("reading")
            yield batch.slice(half)
