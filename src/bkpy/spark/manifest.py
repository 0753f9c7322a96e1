"""The manifest of an export: the source of a directory's files, and how much of that source they hold.

See docs/reference/formats/export.md. A text file, whose first line has the whole state at its beginning, and each
further line one change. A line is a checksum and JSON, and counts once it is complete.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from crc32c import crc32c

from bkpy.errors import CorruptDataError, UnsupportedVersionError
from bkpy.spark.id_runs import NOTHING, Runs

if TYPE_CHECKING:
    from collections.abc import Mapping

MANIFEST_VERSION: Final = 1


@dataclass(frozen=True)
class ExportSource:
    """What is exported: the ledgers of a cluster, or its log of that name and `log_uid`."""

    cluster: str
    log: str | None = None
    log_uid: str | None = None

    def __str__(self) -> str:
        if self.log is None:
            return f"ledgers of the cluster {self.cluster}"
        return f"the log {self.log} ({self.log_uid}) of the cluster {self.cluster}"


@dataclass(frozen=True)
class ExportLayout:
    """The format of the files, the same for all of a directory."""

    format: str
    payload: str | None = None
    partition_by: str | None = None

    def __str__(self) -> str:
        said = f"{self.format} files with payloads as {self.payload or 'bytes'}"
        return said if self.partition_by is None else f"{said}, partitioned by {self.partition_by}"


@dataclass(frozen=True)
class Totals:
    """What is in a directory: entries, their payload bytes, from so many ledgers (of logs: 0), in so many files."""

    rows: int = 0
    bytes: int = 0
    ledgers: int = 0
    files: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.rows + other.rows, self.bytes + other.bytes, self.ledgers + other.ledgers, self.files + other.files
        )


NO_TOTALS: Final = Totals()


@dataclass(frozen=True)
class Moves:
    """Files that belong to the export and may still have to get their names: from, below `staging`, and to."""

    batch: int
    staging: str
    files: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class State:
    """All that a manifest says: `done` are the ids of ledgers, or positions of the log, that the export holds.

    `gaps` are those of the positions that have no entries, since a loss of entries was accepted there. Batches below
    `next_batch` are part of the export, whole. Of the last one `moves` is what may still be to be done.
    """

    source: ExportSource
    layout: ExportLayout
    done: Runs = NOTHING
    next_batch: int = 0
    totals: Totals = NO_TOTALS
    moves: Moves | None = None
    gaps: Runs = NOTHING

    def committed(self, ids: Runs, added: Totals, moves: Moves, gaps: Runs = NOTHING) -> State:
        """With one more batch."""
        return replace(
            self,
            done=self.done | ids,
            next_batch=moves.batch + 1,
            totals=self.totals + added,
            moves=moves,
            gaps=self.gaps | gaps,
        )

    def finished(self) -> State:
        """When all files have their names."""
        return replace(self, moves=None)


def first_line(state: State) -> bytes:
    """The line that a manifest begins with."""
    return _line(
        {
            "version": MANIFEST_VERSION,
            "source": _given(vars(state.source)),
            "layout": _given(vars(state.layout)),
            "done": str(state.done),
            "next_batch": state.next_batch,
            "totals": vars(state.totals),
            **({} if state.moves is None else {"moves": _encoded(state.moves)}),
            **_gaps(state.gaps),
        }
    )


def planned_line(batch: int, staging: str, ids: Runs) -> bytes:
    """What is about to be exported, and where that is written for the time being."""
    return _line({"planned": {"batch": batch, "staging": staging, "ids": str(ids)}})


def committed_line(ids: Runs, added: Totals, moves: Moves, gaps: Runs = NOTHING) -> bytes:
    """A batch that is part of the export from now on."""
    return _line({"committed": {**_encoded(moves), "ids": str(ids), "totals": vars(added), **_gaps(gaps)}})


def finished_line(batch: int) -> bytes:
    """All files of the batch have their names."""
    return _line({"finished": {"batch": batch}})


def decode(data: bytes, path: str) -> State | None:
    """What the manifest at `path` says; None if not even its first line is whole, so that it never counted.

    Raises `UnsupportedVersionError` for a newer format and `CorruptDataError` for what no crash can have left.
    """
    *lines, torn = data.split(b"\n")  # what follows the last line break was never acknowledged
    state: State | None = None
    for i, line in enumerate(lines):
        fields = _fields(line)
        if fields is None and i == len(lines) - 1 and not torn:
            break  # torn as well: a file's end may come to disk in any order
        try:
            if fields is None:
                raise ValueError("the checksum is wrong")
            state = _begun(fields, path) if state is None else _after(state, fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptDataError(
                f"line {i + 1} of the export's manifest is damaged: {error}. Export into a new directory", path=path
            ) from error
    return state


def _line(fields: Mapping[str, Any]) -> bytes:
    text = json.dumps(fields, separators=(",", ":")).encode()
    return b"%08x %s\n" % (crc32c(text), text)


def _fields(line: bytes) -> dict[str, Any] | None:
    """None if it isn't what was written."""
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % crc32c(text):
        return None
    fields = json.loads(text)
    return fields if isinstance(fields, dict) else None


def _begun(fields: dict[str, Any], path: str) -> State:
    if fields["version"] > MANIFEST_VERSION:
        raise UnsupportedVersionError(
            f"the export's manifest has format version {fields['version']}, this bkpy reads up to {MANIFEST_VERSION}: "
            f"upgrade it [file {path}]"
        )
    return State(
        ExportSource(**fields["source"]),
        ExportLayout(**fields["layout"]),
        Runs.parse(fields["done"]),
        fields["next_batch"],
        Totals(**fields["totals"]),
        _moves(fields["moves"]) if "moves" in fields else None,
        Runs.parse(fields.get("gaps", "")),
    )


def _after(state: State, fields: dict[str, Any]) -> State:
    ((kind, said),) = fields.items()
    if said["batch"] != state.next_batch - (kind == "finished"):
        raise ValueError(f"batch {said['batch']} can't follow")
    if kind == "planned":
        return state  # nothing of it counts before it is committed
    if kind == "committed":
        gaps = Runs.parse(said.get("gaps", ""))
        return state.committed(Runs.parse(said["ids"]), Totals(**said["totals"]), _moves(said), gaps)
    if kind == "finished":
        return state.finished()
    raise ValueError(f"unknown kind of line {kind!r}")


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _gaps(gaps: Runs) -> dict[str, str]:
    """A field that most logs do without, and that readers without it pass over."""
    return {"gaps": str(gaps)} if gaps.starts else {}


def _encoded(moves: Moves) -> dict[str, Any]:
    return {"batch": moves.batch, "staging": moves.staging, "files": [list(pair) for pair in moves.files]}


def _moves(fields: Mapping[str, Any]) -> Moves:
    return Moves(fields["batch"], fields["staging"], tuple((old, new) for old, new in fields["files"]))
