"""Defects in how names of settings are taken, and in versioned records of the metadata store."""

from __future__ import annotations

from tests.mutants import Mutant

_NAMES = "tests/unit/config/test_names.py::"
_RECORDS = "tests/unit/metadata/test_stored_record.py::"

MUTANTS: list[Mutant] = [
    Mutant(
        "a byte order mark is no TOML",
        "a file that an editor has begun with one is refused, and shows nothing wrong",
        'tomllib.loads(data.decode("utf-8-sig"))',
        "tomllib.loads(data.decode())",
        ("tests/unit/config/test_config.py::test_a_file_may_begin_with_a_byte_order_mark",),
    ),
    Mutant(
        "sizes of settings may be larger than 64 bits",
        "the bookie ends with an unexpected OverflowError, which names no setting",
        "Mebibytes = Annotated[int, Field(gt=0, le=SIZE_MAX // MIB)]",
        "Mebibytes = Annotated[int, Field(gt=0)]",
        ("tests/unit/config/test_config.py::test_refusals_are_one_line_and_name_their_place",),
    ),
    Mutant(
        "a bookie's directory may have an empty name",
        "the bookie puts its files into whatever directory it was started in",
        "Directory = Annotated[str, Field(min_length=1)]",
        "Directory = Annotated[str, Field()]",
        ("tests/unit/config/test_config.py::test_no_directory_has_an_empty_name",),
    ),
    Mutant(
        "a setting that is given by both its names has the last value",
        "an operator who adds the new name and forgets the former one gets either value, by the order in the file",
        "if new in found:",
        "if False:",
        (f"{_NAMES}test_both_names_of_one_setting_are_refused",),
    ),
    Mutant(
        "a setting that has become internal is taken without a notice",
        "the next version refuses the file, and nobody was warned",
        'if groups[new] is None:\n    changes.append("has become internal")',
        "",
        (f"{_NAMES}test_a_name_that_the_next_version_refuses_is_a_notice",),
    ),
    Mutant(
        "a bookie's flag overrides a variable only if both have the same name",
        "a former name in a file wins over the new name in a flag",
        "found[new] = value",
        "found[name] = value",
        (f"{_NAMES}test_a_bookie_takes_former_and_internal_names_from_everywhere",),
    ),
    Mutant(
        "the group of a field is that of the last class that inherits it",
        "tuning values are public, and the page of settings has them all",
        "for base in reversed(cls.__mro__):",
        "for base in cls.__mro__:",
        (f"{_NAMES}test_groups_of_some",),
    ),
    Mutant(
        "a record of a newer version is read as if it were of this one",
        "an older bkpy acts on half of what a newer one stored",
        "if version > self.version:",
        "if version > self.version + 1:",
        (f"{_RECORDS}test_a_newer_version_is_not_taken_for_damage",),
    ),
    Mutant(
        "fields of a newer bkpy are lost when a record is stored again",
        "a newer bkpy finds less than it stored",
        'return json.dumps({"version": self.version, **fields, **unknown}).encode()',
        'return json.dumps({"version": self.version, **fields}).encode()',
        (f"{_RECORDS}test_unknown_fields_survive",),
    ),
    Mutant(
        "a file of settings may be of any length",
        "a device that is named by mistake takes all memory of the machine",
        '    if len(data) > _BYTES_MAX:\n        raise ValueError(f"it has over',
        '    if False:\n        raise ValueError(f"it has over',
        ("tests/unit/config/test_config.py::test_a_file_that_never_ends_is_refused",),
    ),
]
