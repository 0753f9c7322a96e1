"""Defects in how ranges are cut out of what is stored."""

from __future__ import annotations

from tests.mutants import Mutant

_RANGES = "tests/unit/storage/reads/test_ranges.py"

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
]
