"""What a bookie knows of a ledger besides its entries, and the bounded cache of it.

Invariant: a state with changes that no checkpoint has written is never evicted.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bkpy.protocol.wire.records import HEADER_BYTES, last_add_confirmed_at

if TYPE_CHECKING:
    from collections.abc import Collection

    from bkpy.buffers import Bytes

_LOOKS_MAX: Final = 1000  # more than are loaded at a time, so that the cache gets back to its bound


@dataclass(slots=True)
class LedgerInfo:
    """One ledger's state. `key` is empty if it was lost: nobody can be authorised, and every answer is *unknown*."""

    ledger_id: int
    key: bytes
    fenced: bool = False
    limbo: bool = False  # negatives can't be given
    fence_of_limbo: bool = False  # it is fenced only because it is in limbo: no client has asked for a fence
    explicit_lac: bytes = b""  # a record, empty if there is none
    last_entry: int = -1  # highest id in the index; what the memtable has comes on top
    lac: int = -1  # highest last add confirmed seen in entries that were checkpointed
    shard: int = 0
    verified: bool = False  # its block rows were found complete since the start
    pins: int = 0  # generations, reads and deletions that need it in the cache
    hidden: bool = False  # what the index has of it is unknown to whoever asks, for it may be deleted
    disturbed: bool = False  # since it was hidden something was stored for it
    gone: bool = False  # deleted or replaced: nothing may be written or concluded for this state any more
    proven_key: bytes = b""  # the ledger's key in the metadata, if the bookie has read it since the state was loaded


def take_explicit_lac(info: LedgerInfo, record: bytes) -> bool:
    """Keep the record if its last add confirmed is higher than that of the one the ledger has."""
    if lac_of(record) <= lac_of(info.explicit_lac):
        return False
    info.explicit_lac = record
    return True


def lac_of(record: Bytes) -> int:
    """The last add confirmed that a record carries; below -1 if there is no record."""
    return last_add_confirmed_at(record, 0) if len(record) >= HEADER_BYTES else -2


class LedgerCache:
    """States by ledger id, the least recently loaded going first."""

    def __init__(self, infos_max: int) -> None:
        # Not a dict: to find the first key of one takes a look at all that was removed before it.
        self._infos: OrderedDict[int, LedgerInfo] = OrderedDict()
        self._infos_max = infos_max

    def get(self, ledger_id: int) -> LedgerInfo | None:
        return self._infos.get(ledger_id)

    def put(self, info: LedgerInfo) -> None:
        self._infos[info.ledger_id] = info

    def all(self) -> list[LedgerInfo]:
        """Every state in the cache."""
        return list(self._infos.values())

    def remove(self, ledger_id: int) -> None:
        """Forget the state, whatever needs it."""
        del self._infos[ledger_id]

    def trim(self, keep: Collection[int] = ()) -> None:
        """Evict down to the bound what nothing needs and isn't in `keep`: what somebody is about to decide by.

        To be called where no other state was just handed out. What is needed goes to the end of the line, so that many
        of those don't cost a look each every time.
        """
        excess = len(self._infos) - self._infos_max
        looks = min(len(self._infos), len(keep) + _LOOKS_MAX)
        while excess > 0 and looks > 0:
            ledger_id, info = self._infos.popitem(last=False)
            if info.pins or ledger_id in keep:
                self._infos[ledger_id] = info
            else:
                excess -= 1
            looks -= 1

    def __len__(self) -> int:
        return len(self._infos)
