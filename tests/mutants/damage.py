"""Defects in what happens with rows that have rotted, and with bytes that the disk can't read."""

from __future__ import annotations

from tests.mutants import Mutant

_TESTS = "tests/unit/storage"
_INDEX = f"{_TESTS}/index/test_index.py"
_LOG = f"{_TESTS}/entry_log/test_entry_log.py"
_REBUILD = f"{_TESTS}/tools/rebuild/test_rebuild.py"
_SALVAGE = f"{_TESTS}/tools/test_salvage.py"
_CHECK = f"{_TESTS}/tools/check/test_check.py"

MUTANTS: list[Mutant] = [
    Mutant(
        "what power took of a log that a start had counted is damage",
        "people are told to restore a file, or to make a new index, and nothing is wrong",
        "if row.bytes != size and (row.footer or not begun <= size < row.bytes):",
        "if row.bytes != size:",
        (f"{_CHECK}::test_what_power_takes_of_a_log_that_a_start_has_counted_is_no_damage",),
    ),
    Mutant(
        "any log without a footer may be shorter than its row says",
        "a check doesn't tell that blocks are gone with the end of their log",
        "not begun <= size < row.bytes",
        "not size < row.bytes",
        (f"{_CHECK}::test_the_bytes_of_a_log_are_what_a_start_counted_but_for_what_no_row_names",),
    ),
    Mutant(
        "a rotten row in the way of a block is passed over without limbo",
        "entries that it named are denied",
        "row = row._replace(limbo=True)  # its living entries are not known any more\ncontinue",
        "continue",
        (f"{_INDEX}::test_a_damaged_row_in_the_way_of_a_block_puts_the_ledger_in_limbo_and_stays",),
    ),
    Mutant(
        "limbo that a checkpoint found is not known in memory",
        "entries of a ledger with a rotten row are denied until the next start",
        "if info is not None and not info.limbo:\ninfo.limbo = True",
        "if info is not None and not info.limbo:\n    info.limbo = False",
        (
            f"{_TESTS}/reads/test_reading.py::"
            "test_a_row_that_rots_while_the_bookie_runs_puts_its_ledger_in_limbo_when_a_block_comes",
        ),
    ),
    Mutant(
        "a rotten row of a block counts as a short one",
        "a ledger's row is made anew and ends before its entries do: they are denied",
        "last_entry = max(last_entry, first_of_block(key) + SPAN_MAX - 1)",
        "last_entry = max(last_entry, first_of_block(key))",
        (f"{_INDEX}::test_limbo_for_all_believes_a_damaged_row_of_a_block_to_be_as_long_as_one_can_be",),
    ),
    Mutant(
        "rows that fit their checksums count as sound whatever they hold",
        "a rotten row counts as proof that nothing is missing",
        "unseal(key, value)\ncount += 1",
        "count += 1",
        (f"{_INDEX}::test_blocks_do_not_fit_with_a_damaged_row_whatever_its_checksum_says",),
    ),
    Mutant(
        "a ledger whose row has rotted in the old index was in no limbo",
        "a rebuild forgets a loss, and entries are denied",
        "except CorruptDataError:\nlimbo = True",
        "except CorruptDataError:\n    limbo = False",
        (f"{_REBUILD}::test_a_damaged_row_of_a_ledger_in_the_old_index_counts_as_one_in_limbo",),
    ),
    Mutant(
        "only the first block of a ledger in a log is compared with what a rebuild found before",
        "a copy with a damaged record, made by compaction, takes the place of a sound one",
        "if stored is None or first > stored.last_entry:",
        "if pending is not None or stored is None or first > stored.last_entry:",
        (f"{_REBUILD}::test_a_copy_that_compaction_made_takes_nothing_over_from_a_later_one_that_is_sound",),
    ),
    Mutant(
        "a rebuild lets a block with a damaged record take nothing over",
        "a damaged copy counts instead of a sound one, which is removed with its log",
        "counting |= _right(file, ledger_id, row)",
        "right = _right(file, ledger_id, row)\ncounting |= right if right == ids else 0",
        (f"{_REBUILD}::test_a_block_with_a_damaged_record_takes_over_the_others_that_are_sound",),
    ),
    Mutant(
        "a ledger whose own row has rotted ends compaction",
        "one rotten row, and the bookie reclaims no space any more",
        "except CorruptDataError:\ncontinue\nfor source, place in group:",
        "except CorruptDataError:\n    raise\nfor source, place in group:",
        (f"{_TESTS}/space/test_compaction.py::test_rows_of_a_ledger_whose_own_row_is_damaged_stay_as_they_are",),
    ),
    Mutant(
        "an unreadable footer ends a rebuild",
        "a disk with one bad sector costs all entries of the bookie",
        "try:\nreturn read_footer(file)\nexcept OSError:\nreturn None",
        "return read_footer(file)",
        (f"{_REBUILD}::test_a_disk_that_cannot_read_a_part_of_a_log_costs_what_is_there_and_no_more",),
    ),
    Mutant(
        "an unreadable page of a kept file ends a rebuild",
        "a disk with one bad sector costs all entries of the bookie",
        "try:\nreturn self._file.pread(length, offset)\nexcept OSError:\nreturn None",
        "return self._file.pread(length, offset)",
        (f"{_REBUILD}::test_batches_that_stayed_in_journal_files_are_found",),
    ),
    Mutant(
        "an unreadable head of a block ends a scan",
        "a disk with one bad sector costs all entries of the bookie",
        "try:\nhead = decode_block_head(self._file.pread(BLOCK_HEADER_BYTES, offset))\nexcept OSError as e:",
        "try:\n    head = decode_block_head(self._file.pread(BLOCK_HEADER_BYTES, offset))\nexcept ImportError as e:",
        (f"{_LOG}::test_a_scan_passes_an_unreadable_head_of_a_block_and_finds_what_is_behind",),
    ),
    Mutant(
        "only the first place that looks like a block is looked at",
        "a rebuild misses a sound block behind a rotten one",
        "at = chunk.find(BLOCK_MAGIC, at + 1)",
        "at = -1",
        (f"{_LOG}::test_bytes_like_the_begin_of_a_block_do_not_hide_the_next_one",),
    ),
    Mutant(
        "a log that is gone costs all that is read with it",
        "a range of entries is unknown of which most are there",
        "if not lost:\nreturn None",
        "if not lost:\n    return None\nreturn [None] * len(rows)",
        (f"{_TESTS}/reads/test_reading.py::test_of_the_logs_of_one_read_only_the_one_that_is_gone_is_unknown",),
    ),
    Mutant(
        "what lacks across two steps of the look is two ranges",
        "a bookie that lacks a large part of a ledger reports thousands of ranges",
        "if missing_ranges and share.following(missing_ranges[-1].last) == first:",
        "if missing_ranges and missing_ranges[-1].last + 1 == first:",
        (
            f"{_TESTS}/test_losses.py::"
            "test_what_lacks_across_steps_of_the_look_is_one_range_unless_something_is_between",
        ),
    ),
    Mutant(
        "a recycled journal file that has its old name back counts as the oldest one",
        "a rebuild refuses a sound journal, or puts every ledger in limbo",
        "if header.file_id == file_id or decode_frame_header(",
        "if True or decode_frame_header(",
        (f"{_TESTS}/tools/rebuild/test_rebuild.py::test_a_recycled_file_that_has_its_old_name_back_is_no_damage",),
    ),
    Mutant(
        "an unreadable header of a journal ends a check",
        "an operator gets an error in place of what is damaged",
        "except OSError as e:\nself._found(Defect(e.filename or directory, None, None, str(e), JOURNAL))",
        "except ValueError as e:\n    self._found(Defect(directory, None, None, str(e), JOURNAL))",
        (f"{_CHECK}::test_a_journal_that_cannot_be_read_is_told_and_hides_no_other_finding",),
    ),
    Mutant(
        "rows of a deleted ledger count as strays",
        "a check tells of damage where there is none, and an operator rebuilds the index",
        "strays = sum(1 for _ in block_rows(self._txn)) - deleted - self.blocks",
        "strays = sum(1 for _ in block_rows(self._txn)) - self.blocks",
        (f"{_CHECK}::test_rows_of_a_deleted_ledger_that_are_still_there_are_no_strays",),
    ),
    Mutant(
        "damages that a round has forgotten come back",
        "an operator is told of damage that is gone",
        "if key not in self._known:\ncontinue  # a round has ended meanwhile",
        "if key not in self._known:\n    self._known[key] = Known(old, 0)",
        (f"{_TESTS}/scrub/test_walk.py::test_damages_that_a_round_has_forgotten_meanwhile_do_not_come_back",),
    ),
    Mutant(
        "a block cut by a crash is damage to a check",
        "`bookie check` fails after a crash that lost nothing",
        "if begun is not None and damage.offset >= begun:",
        "if False:",
        (f"{_CHECK}::test_what_a_crash_has_cut_of_a_log_is_no_damage",),
    ),
    Mutant(
        "a header cut by a crash is damage to a check",
        "`bookie check` fails after a crash that lost nothing",
        'what = "" if may_be_cut else e.message',
        "what = e.message",
        (f"{_CHECK}::test_what_a_crash_has_cut_of_a_log_is_no_damage",),
    ),
    Mutant(
        "a check takes damage in a complete log for what a crash cut",
        "`bookie check` hides what has rotted",
        "begun = None if row is not None and row.footer else named_end",
        "begun = named_end",
        (f"{_CHECK}::test_what_is_damaged_in_a_complete_log_or_before_the_last_row_was_cut_by_no_crash",),
    ),
    Mutant(
        "a scan doesn't look where a block says that it was written",
        "a new index names entries that a ledger never had, out of the payload of a damaged block",
        "return head if self._seed is None or head.tag == place_tag(self._seed, offset) else None",
        "return head",
        (
            f"{_LOG}::test_an_image_of_a_block_in_a_damaged_one_is_no_block",
            f"{_LOG}::test_an_image_of_a_block_in_a_torn_one_is_no_block",
        ),
    ),
    Mutant(
        "all blocks of an index say the same of their place",
        "a new index names entries that a ledger never had, out of the payload of a damaged block",
        'return crc32c(offset.to_bytes(8, "little"), seed) % 0xFFFF + 1',
        "return seed % 0xFFFF + 1",
        (f"{_LOG}::test_an_image_of_a_block_in_a_damaged_one_is_no_block",),
    ),
    Mutant(
        "a scan searches the payload of a damaged block before it looks behind it",
        "of a log of earlier software, a new index names entries that a ledger never had",
        "if behind == end or self._block(behind, end) is not None:",
        "if False:",
        (f"{_LOG}::test_in_a_log_without_tags_what_is_found_behind_a_damaged_header_is_not_certain",),
    ),
    Mutant(
        "what a search has found in a log without tags is certain",
        "a salvage calls entries acknowledged that a ledger never had",
        "self._certain = self._certain and self._seed is not None",
        "self._certain = True",
        (f"{_LOG}::test_in_a_log_without_tags_what_is_found_behind_a_damaged_header_is_not_certain",),
    ),
    Mutant(
        "an image of a record proves which entries were acknowledged",
        "a salvage calls entries acknowledged that a ledger never had",
        "if certain:\n_acknowledged(",
        "if True:\n    _acknowledged(",
        (f"{_SALVAGE}::test_an_image_of_a_block_in_a_damaged_one_proves_nothing",),
    ),
    Mutant(
        "an image of an entry is called what the entry of its number is",
        "a salvage calls entries acknowledged that a ledger never had",
        "its = certain if record in proved else Certainty.UNPROVED",
        "its = certain",
        (f"{_SALVAGE}::test_an_image_of_a_block_that_is_below_what_was_acknowledged_is_unproved",),
    ),
    Mutant(
        "an image of a block takes the place of what was found before",
        "a new index names other bytes for an acknowledged entry",
        "BlockRow(found.block.ids, place), found.certain",
        "BlockRow(found.block.ids, place), True",
        (f"{_REBUILD}::test_what_may_be_an_image_of_a_block_takes_nothing_over",),
    ),
    Mutant(
        "an inspection doesn't say that the disk can't read a part of a log",
        "a bad sector looks like a crash",
        "if scan.error:",
        "if False:",
        (
            "tests/unit/storage/tools/inspect/test_inspect.py::test_blocks_behind_a_place_that_a_disk_cannot_read_are_shown",
        ),
    ),
    Mutant(
        "all logs of an index have the same tags",
        "a new index names entries that a ledger never had, out of the payload of a damaged block",
        "return crc32c(_LOG_ID.pack(log_id), crc32c(uuid))",
        "return crc32c(uuid)",
        (f"{_LOG}::test_each_place_has_its_own_tag_and_none_is_that_of_no_tag",),
    ),
]
