"""The state of a ledger on a bookie, which is everything but its entries, and the bounded cache of states.

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
    """One ledger's state. `key` is empty if it was lost: then nobody is authorised, and every answer is *unknown*."""

    ledger_id: int
    key: bytes
    fenced: bool = False
    limbo: bool = False  # entries may be lost: missing ones are *unknown*, never denied
    fence_of_limbo: bool = False  # it is fenced only because it is in limbo: no client asked for a fence
    explicit_lac: bytes = b""  # a record, empty if there is none
    last_entry: int = -1  # highest id in the index; the memtable may have higher ones
    lac: int = -1  # highest last add confirmed seen in entries that were checkpointed
    shard: int = 0
    verified: bool = False  # its block rows were found complete since the start
    pins: int = 0  # generations, reads and deletions that need it in the cache
    hidden: bool = False  # reads answer *unknown*, for the ledger may be deleted soon
    disturbed: bool = False  # something was stored for it since it was hidden
    gone: bool = False  # deleted or replaced: nobody may write this state, or decide anything by it
    proven_key: bytes = b""  # the key in the metadata, if the bookie read it since the state was loaded


def take_explicit_lac(info: LedgerInfo, record: bytes) -> bool:
    """Keep the record if its last add confirmed is higher than that of the present one."""
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
        # Not a dict: to find its first key, a dict steps over every key that was removed before it.
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
        """Forget the state, even if it is pinned."""
        del self._infos[ledger_id]

    def trim(self, keep: Collection[int] = ()) -> None:
        """Evict states down to the bound, but none that is pinned or in `keep` (a caller is about to decide by it).

        Call it only where no other state was just handed out. Pinned states move to the end of the line, so that many
        of them don't cost a look each every time.
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
