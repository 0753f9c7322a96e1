"""Defects in how ranges are cut out of what is stored, and entries made columns."""

from __future__ import annotations

from tests.mutants import Mutant

_RANGES = "tests/unit/storage/reads/test_ranges.py"
_COLUMNS = "tests/unit/client/read/test_record_batches.py"

MUTANTS: list[Mutant] = [
    Mutant(
        "records of a run are taken for equally long by its length alone",
        "a read begins in the midst of an entry, and a bookie seems to have damaged copies",
        "all(data[start + i : end : size].tobytes() == encoded_length[i : i + 1] * wanted for i in range(_SIZE.size))",
        "True",
        (f"{_RANGES}::test_sizes_that_only_begin_alike_are_walked",),
    ),
    Mutant(
        "only the first record of what is read is looked at",
        "a bookie answers with entries that nobody asked for, instead of saying that it can't tell",
        "for rank in {begin, begin + count - 1} if count else ():",
        "for rank in {begin} if count else ():",
        (f"{_RANGES}::test_the_end_of_a_run_is_unknown_where_another_record_is_than_should_be",),
    ),
    Mutant(
        "what lies between payloads is taken for payloads",
        "columns have headers in place of what was appended",
        "pa.array(np.arange(0, len(edges), 2, dtype=np.int32))",
        "pa.array(np.arange(1, len(edges) + 1, 2, dtype=np.int32) % (len(edges) - 1))",
        (f"{_COLUMNS}::test_a_ledger",),
    ),
    Mutant(
        "the number of a producer read where the time is",
        "a consumer takes entries for those that it has seen",
        "_SEQUENCE_BYTES: Final = 2 * STAMP_BYTES",
        "_SEQUENCE_BYTES: Final = STAMP_BYTES",
        (f"{_COLUMNS}::test_a_log",),
    ),
    Mutant(
        "columns of a log count from its ledger's beginning",
        "a position names another entry",
        "ascending(log_block.first_position, len(block)),",
        "ascending(block.first_entry, len(block)),",
        (f"{_COLUMNS}::test_a_log",),
    ),
    Mutant(
        "the first range of a scan has as many entries as a setting says, and no other does",
        "with small bounds, the first read alone is large",
        "return min(self._range_entries_max, self._first_entries)",
        "return self._first_entries",
        ("tests/unit/client/read/test_range_pipeline.py::test_no_range_has_more_entries_than_any_may_have",),
    ),
]
