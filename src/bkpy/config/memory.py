"""Shares a bookie's memory out among the parts of it that have no value of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bkpy.config.base import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping

# The parts of the default of memory_bytes_max. Of another budget each part gets the same share. But a start replays the
# memtables, so with more memory these, and the queues that feed them, get no more than their default.
MEMORY_BYTES: Final = 512 * MIB
MEMORY_FOR_REPLAY: Final = ("memtable_bytes_max", "journal_queue_bytes_max", "deferred_sync_bytes_max")
MEMORY_PARTS: Final[Mapping[str, int]] = {
    "memtable_bytes_max": 96 * MIB,
    "journal_queue_bytes_max": 32 * MIB,
    "deferred_sync_bytes_max": 32 * MIB,
    "receive_bytes_max": 128 * MIB,
    "answers_bytes_max": 128 * MIB,
    "block_cache_bytes_max": 32 * MIB,
    "presented_keys_bytes_max": 32 * MIB,
    "ledger_states_max": 100_000,
}


def shares_of_memory(values: dict[str, Any]) -> dict[str, Any]:
    """The values, completed: the parts follow from `memory_bytes_max`, or that from the parts if it isn't given."""
    given = values.get("memory_bytes_max")
    if given is None:
        beyond = {name: values[name] - share for name, share in MEMORY_PARTS.items() if is_count(values.get(name))}
        beyond["memtable_bytes_max"] = 2 * beyond.get("memtable_bytes_max", 0)  # one is filled, one is flushed
        more = sum(max(0, by) for name, by in beyond.items() if "bytes" in name)
        return {**values, "memory_bytes_max": MEMORY_BYTES + more}
    if not is_count(given):
        return values  # and it is refused
    shares = {name: max(1, share * given // MEMORY_BYTES) for name, share in MEMORY_PARTS.items()}
    return {**shares, **{name: min(shares[name], MEMORY_PARTS[name]) for name in MEMORY_FOR_REPLAY}, **values}


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
