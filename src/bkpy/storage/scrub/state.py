"""The progress of a ledger directory's scrub, as a file in it stores it (docs/reference/formats/scrub.md).

Invariant: only the time of scrubbing depends on it: a damaged or missing file costs a round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bkpy.errors import CorruptDataError
from bkpy.storage.file_names import SCRUB_NAME
from bkpy.storage.scrub.damages import Known
from bkpy.storage.sealed_json import replace_file, seal_json, unseal_json
from bkpy.storage.tools.check.defects import Defect

if TYPE_CHECKING:
    from bkpy.runtime.interfaces import Files

VERSION: Final = 1


class Round(NamedTuple):
    """A round that is under way. It goes on at the first block row of `ledger_id` from entry `entry_id` on."""

    began_s: float  # since 1970
    ledger_id: int
    entry_id: int
    bytes: int  # looked at so far


class ScrubState(NamedTuple):
    """The stored state of one directory. Times are in seconds since 1970.

    `counted_from_s`: the beginning of the interval to the next round: the end of the last round, or a chosen time if
    there was none yet.
    """

    rounds: int  # full ones so far
    counted_from_s: float
    ended_s: float | None = None  # the last full round; None before it
    round: Round | None = None
    known: tuple[Known, ...] = ()
    left_out: int = 0

    def encode(self) -> bytes:
        return seal_json(
            {
                "version": VERSION,
                "rounds": self.rounds,
                "counted_from_s": self.counted_from_s,
                "ended_s": self.ended_s,
                "round": None if self.round is None else self.round._asdict(),
                "damages": [_encode_known(one) for one in self.known],
                "left_out": self.left_out,
            }
        )


def _encode_known(one: Known) -> dict[str, Any]:
    fields = one.defect._asdict()
    return {**fields, "path": one.defect.path.rpartition("/")[2], "round": one.round}


def decode_state(data: bytes, directory: str) -> ScrubState:
    """The state that was stored in that directory; `CorruptDataError` for anything else."""
    try:
        content = unseal_json(data)
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']} is not supported")
        known = tuple(
            Known(Defect(**{**fields, "path": f"{directory}/{fields['path']}"}), number)
            for number, fields in ((fields.pop("round"), fields) for fields in content["damages"])
        )
        under_way = content["round"]
        return ScrubState(
            content["rounds"],
            content["counted_from_s"],
            content["ended_s"],
            None if under_way is None else Round(**under_way),
            known,
            content["left_out"],
        )
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise CorruptDataError(
            f"the progress of the scrub can't be read: {e}", path=f"{directory}/{SCRUB_NAME}"
        ) from None


def read_state(files: Files, directory: str) -> ScrubState | None:
    """The state in the directory's file, None if there is none; `CorruptDataError` and `OSError`. Blocks."""
    path = f"{directory}/{SCRUB_NAME}"
    if not files.exists(path):
        return None
    file = files.open(path, read_only=True)
    try:
        return decode_state(file.pread(file.size(), 0), directory)
    finally:
        file.close()


def store_state(files: Files, directory: str, state: ScrubState) -> None:
    """Store the state durably. Blocks."""
    replace_file(files, directory, SCRUB_NAME, state.encode())
