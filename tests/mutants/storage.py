"""Defects of the storage and of the real files."""

from __future__ import annotations

from tests.mutants import Mutant

_TESTS = "tests/unit/storage"
_EVICTED = f"{_TESTS}/ledgers/test_evicted_states.py"
_AT_RISK = f"{_TESTS}/test_at_risk.py"
_CHECKPOINTS = f"{_TESTS}/checkpoint/test_checkpoints.py"
_KEPT = f"{_TESTS}/checkpoint/test_kept_batches.py"
_FULL = f"{_TESTS}/test_full_memory.py"
_MEMTABLE = f"{_TESTS}/memtable/test_memtable.py"
_MOVING = f"{_TESTS}/test_moving.py"
_LOSSES = f"{_TESTS}/test_losses.py"
_SCRUB = f"{_TESTS}/scrub/test_scrub.py"
_REBUILD = f"{_TESTS}/tools/rebuild/test_rebuild.py"
_DURABLE = ("tests/unit/runtime/test_runtime.py::test_a_durable_write_is_on_disk_whole_when_it_returns",)

MUTANTS: list[Mutant] = [
    Mutant(
        "an old journal file that was removed by hand can't be recycled",
        "a bookie ends when it begins its next journal file, for a file that nobody needs",
        "with contextlib.suppress(FileNotFoundError):  # somebody who wanted space has removed it",
        "if True:",
        (f"{_TESTS}/journal/test_journal.py::test_old_files_that_somebody_has_removed_are_no_obstacle",),
    ),
    Mutant(
        "later frames looked for in what is read at once alone",
        "damage in a long frame is cut off as a torn end: acknowledged entries are denied",
        "start += len(chunk)\nif len(chunk) < self._read_bytes:\n    break",
        "break",
        (
            f"{_TESTS}/journal/test_journal_damage.py::"
            "test_damage_in_a_frame_that_is_longer_than_what_is_read_at_once_is_not_taken_for_a_torn_end",
        ),
    ),
    Mutant(
        "limbo ended without a look at the index",
        "a bookie denies what it has lost and not got back",
        "sound = blocks_fit(txn, ledger_id, row) and holds_all(txn, metadata, bookie_id)",
        "sound = True",
        (f"{_LOSSES}::test_what_lacks_is_exactly_what_is_not_in_the_index",),
    ),
    Mutant(
        "limbo ended of a ledger that isn't closed",
        "its closing write may name the bookie for what it has lost",
        "return verdict.demand is Demand.CLOSED and not verdict.missing and verdict.locked",
        "return not verdict.missing and verdict.locked",
        (f"{_LOSSES}::test_a_ledger_that_is_not_closed_or_does_not_name_the_bookie_stays_in_limbo",),
    ),
    Mutant(
        "ledgers from before a loss trusted",
        "a bookie denies a ledger of which it has lost everything",
        "return not all_in_doubt and ledger_id > limbo_to",
        "return not all_in_doubt",
        (f"{_LOSSES}::test_ledgers_never_seen_are_denied_only_above_the_id",),
    ),
    Mutant(
        "empty disks taken for those of a new bookie",
        "a bookie whose disks were replaced denies all that it had",
        "unknown_in_limbo=True, unasked=False, marks=(START,) * len(self._directories.journals)",
        "unknown_in_limbo=False, unasked=False, marks=(START,) * len(self._directories.journals)",
        (f"{_LOSSES}::test_after_a_new_beginning_everything_is_unknown",),
    ),
    Mutant(
        "scrub that takes what moved for damage",
        "a block that was compacted or deleted between two steps is told as damaged",
        "if txn.get(source.key) == source.value and txn.get(trash_key(source.ledger_id)) is None",
        "if source.key",
        (f"{_SCRUB}::test_compaction_and_deletion_between_any_two_steps_are_no_damage",),
    ),
    Mutant(
        "scrub that begins anew after each restart",
        "of a bookie that restarts now and then, the last ledgers are never scrubbed",
        "block_key(under_way.ledger_id, under_way.entry_id),\nshard.deleted.pending,",
        "START,\nshard.deleted.pending,",
        (f"{_SCRUB}::test_a_restart_in_the_middle_goes_on_from_where_it_was",),
    ),
    Mutant(
        "scrub that never forgets",
        "what was mended is copied from other bookies again and again",
        "gone = [key for key, one in self._known.items() if one.round != round_number]",
        "gone: list[_Key] = []",
        (f"{_SCRUB}::test_damage_in_any_block_is_found_told_once_and_forgotten",),
    ),
    Mutant(
        "an unclean stop without a journal taken for a clean one",
        "what was acknowledged and lost is denied",
        "return mark not in (NOTHING, boot_id)",
        "return mark not in (NOTHING, IN_MEMORY, boot_id)",
        (f"{_AT_RISK}::test_an_unclean_stop",),
    ),
    Mutant(
        "a fence without a sync where adds have none",
        "a power cut takes back a fence that was told",
        "            group.sync = True\n",
        "",
        (f"{_AT_RISK}::test_a_fence_survives_what_adds_before_it_do_not",),
    ),
    Mutant(
        "frames numbered below a mark",
        "what was acknowledged after a start on a journal that lost its end is skipped by the next replay",
        "self.ends[number] = max(journal.end, furthest, key=lambda mark: mark.sequence)",
        "self.ends[number] = journal.end",
        ("tests/unit/storage/journal/test_journal_damage.py::test_a_journal_that_ends_before_a_mark_is_damaged",),
    ),
    Mutant(
        "kept journal file recycled",
        "other bytes are where the index says that a batch is",
        "(file_id, self._files.links(self._path(file_id)) == 1)",
        "(file_id, True)",
        (f"{_KEPT}::test_a_kept_file_outlives_its_name_in_the_journal_and_is_never_overwritten",),
    ),
    Mutant(
        "batch above the mark left in its journal file",
        "the index names a frame that a crash can tear",
        "if not at.file_id or (at.file_id, at.offset) >= (mark.file_id, mark.offset):",
        "if not at.file_id:",
        (f"{_KEPT}::test_what_is_above_the_mark_is_written",),
    ),
    Mutant(
        "name of a kept file not synced",
        "a power cut takes the file away that the index names",
        "if self._linked:\n    self._files.sync()",
        "pass",
        (f"{_KEPT}::test_a_crash_at_every_operation_while_batches_stay",),
    ),
    Mutant(
        "checksum of a kept batch not looked at",
        "rot in a journal file is handed on",
        "if len(raw) != place.length or crc32c(raw) != kept.checksum:",
        "if len(raw) != place.length:",
        (f"{_KEPT}::test_rot_in_a_journal_file_is_unknown_and_nothing_else_is",),
    ),
    Mutant(
        "memtable looked into after the index",
        "an acknowledged entry is denied when a checkpoint commits in the middle of a read",
        "ranges = [*memory, *(of_block(b.ids, block) for b, block in zip(found.blocks, blocks, strict=True))]",
        "memory = self._memory(ledger_id, first, last, bytes_max)[0]\n"
        "ranges = [*memory, *(of_block(b.ids, block) for b, block in zip(found.blocks, blocks, strict=True))]",
        (f"{_CHECKPOINTS}::test_a_checkpoint_in_the_middle_of_a_read_hides_nothing_from_it",),
    ),
    Mutant(
        "journal files let go by one shard's mark",
        "a crash between the checkpoints of two ledger directories loses data",
        "journal.retain(min(s.row.marks[number].file_id for s in self.shards))",
        "journal.retain(shard.row.marks[number].file_id)",
        (f"{_CHECKPOINTS}::test_a_journal_keeps_what_only_one_of_two_directories_has_written",),
    ),
    Mutant(
        "durable write without the flag that makes it so",
        "a power cut loses acknowledged data",
        "done = os.pwritev(self._fd, buffers, offset, self._dsync)",
        "done = os.pwritev(self._fd, buffers, offset)",
        _DURABLE,
    ),
    Mutant(
        "rest of a short durable write not synced",
        "a power cut loses acknowledged data",
        "self._write_rest(buffers, done, offset)\nos.fdatasync(self._fd)",
        "self._write_rest(buffers, done, offset)",
        _DURABLE,
    ),
    Mutant(
        "rest of a short durable write not written",
        "acknowledged data were never written",
        "self._write_rest(buffers, done, offset)\nos.fdatasync(self._fd)",
        "os.fdatasync(self._fd)",
        _DURABLE,
    ),
    Mutant(
        "durable write in two steps not synced",
        "a power cut loses acknowledged data",
        "self.pwritev(buffers, offset)\nos.fdatasync(self._fd)",
        "self.pwritev(buffers, offset)",
        _DURABLE,
    ),
    Mutant(
        "marks taken after the seal",
        "what is added while a checkpoint runs is taken for written, and lost in a crash",
        "written = await shard.flush(infos, marks, close_log=close_log)",
        "await shard._flush_worker.run(int)\n"
        "written = await shard.flush(infos, _marks(shard, ends()), close_log=close_log)",
        (f"{_CHECKPOINTS}::test_what_is_added_while_a_checkpoint_commits_is_not_taken_for_written",),
    ),
    Mutant(
        "a request's own ledgers evicted",
        "entries are denied and fences forgotten",
        "self.trim(keep=wanted)  # others may have evicted some while this load waited\n"
        "self._unseen = set()\n"
        "# Again if a ledger was deleted while others were loaded: `was_deleted` must know of it.\n"
        "while not (missing := {i for i in wanted if cached(i) is None}) <= self._unseen:\n"
        "    await self._load(missing)",
        "missing = {i for i in wanted if cached(i) is None}\nself.trim()\nawait self._load(missing)",
        (f"{_EVICTED}::test_a_request_never_takes_a_ledger_of_its_own_for_new",),
    ),
    Mutant(
        "missing states found out before waiting for others",
        "what they evicted meanwhile is taken for new",
        "async with self._loading:\n    wanted = set(ledger_ids)",
        "wanted = {ledger_id for ledger_id in ledger_ids if cached(ledger_id) is None}\nasync with self._loading:",
        (f"{_EVICTED}::test_nothing_is_denied_however_few_states_are_kept",),
    ),
    Mutant(
        "ledger made known without a look whether it is",
        "a mistake elsewhere makes a bookie deny what it acknowledged",
        "        if ledger_id not in self._unseen:\n",
        "        if False:\n",
        (f"{_EVICTED}::test_a_ledger_that_was_seen_is_never_created_again",),
    ),
    Mutant(
        "rows weakened by a checkpoint",
        "a mistake elsewhere makes a bookie forget a fence for good",
        "check_no_less(ledger_id, info, row)",
        "pass",
        (f"{_EVICTED}::test_a_checkpoint_never_weakens_a_row",),
    ),
    Mutant(
        "ledger evicted while it is read",
        "that it is damaged is forgotten, and what it lost is denied",
        "info.pins += 1  # the findings of this read must reach the state in the cache",
        "info.pins += 0",
        (f"{_CHECKPOINTS}::test_a_read_during_which_its_ledger_could_be_evicted_says_what_it_found_out",),
    ),
    Mutant(
        "full queue of a journal not told",
        "a stalled disk uses up all memory",
        "self._store(self.shards[0], columns, body, journal.add(head, body, on_durable))\n"
        "self.full = self.full or journal.full",
        "self._store(self.shards[0], columns, body, journal.add(head, body, on_durable))",
        (f"{_FULL}::test_a_stalled_journal_is_told_and_holds_up_no_flush",),
    ),
    Mutant(
        "full memtables not told",
        "a stalled disk uses up all memory",
        "self.full = self.full or shard.memory_bytes >= 2 * limit",
        "pass",
        (f"{_FULL}::test_full_memtables_are_told_and_end",),
    ),
    Mutant(
        "memory that is used up not told",
        "small entries keep much more memory than there may be",
        "if self.memory.full and not self.full and self._held.use_up_budget():",
        "if False:",
        (f"{_FULL}::test_small_entries_that_keep_much_memory_are_flushed_before_it_is_used_up",),
    ),
    Mutant(
        "writers wait for memory that others have",
        "a bookie takes nothing any more",
        "return self.use_up_budget() and (self.memtable_bytes > 0 or self.queued_bytes > 0)",
        "return self.use_up_budget()",
        (f"{_FULL}::test_a_budget_that_others_have_used_up_lets_entries_in_one_by_one",),
    ),
    Mutant(
        "nothing is flushed to make room",
        "a bookie takes nothing until the next checkpoint",
        "    self._flush_all_soon()  # after each flush this runs again\n    return",
        "    return",
        (f"{_FULL}::test_memory_that_is_used_up_while_a_journal_stalls_is_made_room_in_when_it_goes_on",),
    ),
    Mutant(
        "room in a journal's queue not told",
        "a bookie takes nothing any more",
        "self._on_written()",
        "pass",
        (f"{_FULL}::test_a_stalled_journal_is_told_and_holds_up_no_flush",),
    ),
    Mutant(
        "checkpoint waits for a journal's files",
        "a stalled disk uses up all memory",
        "journal.retain(min(s.row.marks[number].file_id for s in self.shards))",
        "await journal._worker.run(journal._writer.retain, min(s.row.marks[number].file_id for s in self.shards))",
        (f"{_FULL}::test_a_checkpoint_does_not_wait_for_a_stalled_journal_and_its_files_go_later",),
    ),
    Mutant(
        "states without entries not counted",
        "many fences use up all memory",
        "self.bytes += STATE_BYTES",
        "pass",
        (f"{_FULL}::test_fences_and_published_confirmations_are_flushed_before_they_fill_memory",),
    ),
    Mutant(
        "frames not counted",
        "requests of one small batch each take three times the memory that they are counted with",
        "self.bytes += size + FRAME_OVERHEAD_BYTES + BATCH_OVERHEAD_BYTES * len(columns[1])",
        "self.bytes += size + BATCH_OVERHEAD_BYTES * len(columns[1])",
        (f"{_MEMTABLE}::test_no_less_is_counted_than_is_held",),
    ),
    Mutant(
        "at rest while a generation is let go of",
        "what it held is never given back to the system",
        "freed = [shard.cache.release_idle() or shard.clearing for shard in self._shards]",
        "freed = [shard.cache.release_idle() for shard in self._shards]",
        (f"{_FULL}::test_what_a_checkpoint_lets_go_of_bit_by_bit_is_freed_before_memory_is_at_rest",),
    ),
    Mutant(
        "newer journal names gone before older ones",
        "a file seems to be lost, and a rebuild of the index takes that for damage",
        "if file_id < first:",
        "if file_id < first or self._files.links(self._path(file_id)) > 1:",
        (f"{_TESTS}/journal/test_journal.py::test_no_gap_is_left_between_files_whichever_have_another_name",),
    ),
    Mutant(
        "fewer backups than asked for",
        "journal files are gone that were to be kept",
        "for file_id in below[: max(0, len(below) - self._backups)]",
        "for file_id in (below[: len(below) - self._backups] if self._backups else below)",
        (f"{_TESTS}/journal/test_journal.py::test_the_newest_files_are_kept_as_backups_however_many_there_are",),
    ),
    Mutant(
        "all batches of a run looked at",
        "reads of the memtable hold everybody up",
        "if at << height >= end or levels[height][at] < first:",
        "if at << height >= end or (height == 0 and levels[height][at] < first):",
        (f"{_MEMTABLE}::test_a_few_looks_find_a_batch_among_many",),
    ),
    Mutant(
        "what a batch has before a range counts towards the answer",
        "each second read of a scan is answered by a fragment, and costs as much as a whole one",
        "                size = size * (highest + 1 - first) // (highest + 1 - lowest)\n",
        "                size = max(size, highest - first)\n",
        (f"{_MEMTABLE}::test_what_a_batch_has_before_the_range_does_not_count",),
    ),
    Mutant(
        "what a block has before a range counts towards the answer",
        "each second read of a scan is answered by a fragment, and costs as much as a whole one",
        "        total += row.place.length * wanted // row.ids.count\n",
        "        total += row.place.length * row.ids.count // max(wanted, row.ids.count)\n",
        (f"{_TESTS}/index/test_index.py::test_what_a_block_has_before_the_range_does_not_count",),
    ),
    Mutant(
        "cookies written before the metadata store knows of a move",
        "a bookie that crashes in the middle of its first start after a move never starts again",
        "if identity.moved and on_moved is not None:",
        "if identity.moved and on_moved is None:",
        (f"{_MOVING}::test_a_crash_at_every_operation_of_a_start_after_a_move",),
    ),
    Mutant(
        "copy taken for a directory that was moved",
        "a bookie comes back without its latest entries, and denies them",
        'if old.startswith("/") and self._files.exists(f"{old}/{COOKIE_NAME}"):',
        "if False:",
        (f"{_MOVING}::test_a_copy_is_refused_while_the_original_is_there",),
    ),
    Mutant(
        "old bytes of a journal that is being written believed",
        "an inspection of a bookie that runs tells of damage that isn't there",
        "source.window.forget()",
        "pass",
        (f"{_TESTS}/journal/test_journal_being_written.py::test_frames_that_come_while_it_is_read_are_no_damage",),
    ),
    Mutant(
        "keys of an index page that no search would find are let pass",
        "a damaged index denies entries that are in it",
        "if (low is not None and first < low) or (high is not None and last >= high):",
        "if False:",
        ("tests/unit/runtime/test_lmdb_pages.py::test_a_key_behind_its_bounds_is_noticed",),
    ),
    Mutant(
        "a leaf of the index that is not what was learned is taken for sound",
        "a damaged index ends the process, or denies what it holds",
        "if checksum and self.sound.checksums[number] == checksum and not integers:",
        "if self.sound.checksums[number] and not integers:",
        ("tests/unit/runtime/test_lmdb_pages.py::test_flips_are_noticed_or_harmless",),
    ),
    Mutant(
        "damaged word of sound leaves is believed",
        "a damaged index ends the process, or denies what it holds",
        "if stored[: _SOUND.size] == _SOUND.pack(_SOUND_MAGIC, zlib.crc32(body), page_bytes) and len(body) % 4 == 0:",
        "if len(body) % 4 == 0:",
        ("tests/unit/runtime/test_lmdb_pages.py::test_word_of_sound_leaves_that_is_not_whole_is_not_believed",),
    ),
    Mutant(
        "leaves learned that are not sound",
        "a damaged index ends the process, or denies what it holds",
        "sound.checksums[number] = checksum if _is_plain_leaf(number, page) else 0",
        "sound.checksums[number] = checksum",
        (
            "tests/unit/runtime/test_lmdb_pages.py::test_word_of_sound_leaves_that_is_damaged_or_of_another_file_hides_nothing",
        ),
    ),
    Mutant(
        "marks in the first transaction of a checkpoint of many ledgers",
        "a crash before the last one loses entries, which are denied",
        "put(SHARD_KEY, encode_shard(self.shard if last else self.shard._replace(marks=self._marks)))",
        "put(SHARD_KEY, encode_shard(self.shard))",
        (f"{_TESTS}/checkpoint/test_many_ledgers.py::test_a_crash_at_every_operation_of_a_checkpoint_of_many_ledgers",),
    ),
    Mutant(
        "all ledgers of a checkpoint in one transaction",
        "memory grows by a page for each ledger, and stays",
        "if self._parts[-1].ledgers == self._ledgers_max:",
        "if False:",
        (f"{_TESTS}/checkpoint/test_many_ledgers.py::test_a_transaction_has_so_many_ledgers",),
    ),
    Mutant(
        "a look through an index that was killed counts as damage",
        "an operator rebuilds a sound index, and the rebuild forgets what was in limbo in it",
        "if done.returncode < 0 or reason.startswith(_NO_MEMORY):",
        "if False:",
        (
            "tests/unit/runtime/test_ordered_store.py::"
            "test_a_look_through_a_store_that_is_ended_from_outside_finds_no_damage",
        ),
    ),
    Mutant(
        "directory not synced after an index has shrunk",
        "a power cut brings back the index as it was before the start",
        "runtime.files.sync_dir(directory)\nstore.close()\nremove_copy(directory, runtime)",
        'store.close()\nruntime.store.remove(f"{directory}/{SHRUNK_INDEX_NAME}")',
        (f"{_TESTS}/index/test_shrink.py::test_the_smaller_file_has_its_name_for_good",),
    ),
    Mutant(
        "a former index removed before the exchange of its name is durable",
        "a start that is killed, the next one and a power cut leave a bookie without an index",
        "runtime.files.sync_dir(directory)  # a start may have died behind the exchange, and before its sync",
        "pass",
        (f"{_TESTS}/index/test_shrink.py::test_an_exchange_of_a_killed_start_is_durable_before_the_former_index_goes",),
    ),
    Mutant(
        "pages of recycled journal files thrown out of the page cache",
        "each write to the journal allocates memory that was there before, and takes several times as long",
        "if self._uncaches and size >= self._uncache_bytes_min:",
        "if size >= self._uncache_bytes_min:",
        (f"{_TESTS}/journal/test_journal.py::test_large_writes_to_new_files_do_not_stay_in_the_page_cache",),
    ),
    Mutant(
        "a torn frame that was never acknowledged counts as damage",
        "each kill in the middle of a write raises a critical alarm",
        "report = self._observer.cut if sure else self._observer.damage",
        "report = self._observer.damage",
        ("tests/unit/storage/journal/test_journal_damage.py::test_of_what_starts_cut_off_only_the_newest_copies_stay",),
    ),
    Mutant(
        "a torn frame that a checkpoint has seen was never acknowledged",
        "the loss of what was acknowledged is told as the usual end of a kill",
        "sure = not self._lost and journal.end.sequence >= furthest.sequence",
        "sure = not self._lost",
        (
            "tests/unit/storage/journal/test_journal_damage.py::"
            "test_a_torn_frame_that_a_checkpoint_has_seen_was_perhaps_acknowledged",
        ),
    ),
    Mutant(
        "a torn frame said to be cut before it is",
        "on a full disk each start names a copy that isn't there",
        "            copies_max = self._settings.journal_max_backups\n"
        "            cut_torn_frame(self._files, path, offset, read_bytes=read_bytes, copies_max=copies_max)\n",
        "            copies_max = self._settings.journal_max_backups\n"
        '            self._observer.cut("was cut", path)\n'
        "            cut_torn_frame(self._files, path, offset, read_bytes=read_bytes, copies_max=copies_max)\n",
        ("tests/unit/storage/journal/test_journal_damage.py::test_nothing_is_said_to_be_cut_before_it_is",),
    ),
    Mutant(
        "copies of torn frames kept for ever",
        "a machine that loses power often fills its journal's disk",
        "for name in copies[: -max(1, copies_max)]:",
        "for name in ():",
        ("tests/unit/storage/journal/test_journal_damage.py::test_of_what_starts_cut_off_only_the_newest_copies_stay",),
    ),
    Mutant(
        "a smaller copy of an index not read back",
        "an index without its rows takes the place of the right one: all is denied, and then removed",
        "if _sums(copy) != _sums(store):",
        "if False:",
        (f"{_TESTS}/index/test_shrink.py::test_a_copy_whose_rows_are_not_those_of_the_index_never_serves",),
    ),
    Mutant(
        "an index opened by the lock file of another",
        "LMDB shows an old state of the index, or an empty one: all is denied, and then removed",
        "if _shows_newest(env):",
        "if True:",
        ("tests/unit/runtime/test_ordered_store.py::test_the_lock_file_of_another_data_file_is_refused",),
    ),
    Mutant(
        "an entry stored where its ledger's earlier life was",
        "a copy that comes back after a collection is acknowledged, and denied at once",
        "self._locate(ledger_id, home)  # an earlier life may have been elsewhere",
        "pass",
        (f"{_EVICTED}::test_a_copy_that_comes_back_is_where_it_is_read",),
    ),
    Mutant(
        "places of evicted ledgers kept for ever",
        "a bookie with a directory added uses more and more memory",
        "for ledger_id in unneeded.intersection(self._shard_overrides):\n    del self._shard_overrides[ledger_id]",
        "pass",
        (f"{_EVICTED}::test_the_place_of_a_ledger_takes_memory_only_as_long_as_its_state_or_a_writer_needs_it",),
    ),
    Mutant(
        "a journal file that ends before the mark is taken for the journal's end",
        "what was acknowledged behind the mark is denied",
        "if source.file.size() < self._mark.offset:\n    return AtBreak.CUT_OFF",
        "if False:\n    return AtBreak.CUT_OFF",
        ("tests/unit/storage/journal/test_journal.py::test_truncation_below_the_mark_is_damage_and_never_an_end",),
    ),
    Mutant(
        "a journal file of zeros is taken for the journal's end",
        "what was acknowledged behind the mark is denied",
        "if source.header is None:\n    return AtBreak.MISSING",
        "if False:\n    return AtBreak.MISSING",
        ("tests/unit/storage/journal/test_journal.py::test_a_file_of_zeros_that_the_mark_is_in_is_damage",),
    ),
    Mutant(
        "the last id of each step left out of what lacks",
        "limbo never ends",
        "end = min(base + SPAN_MAX - 1, whole.last)",
        "end = min(base + SPAN_MAX - 2, whole.last)",
        (f"{_LOSSES}::test_what_lacks_is_found_wherever_blocks_and_steps_begin",),
    ),
    Mutant(
        "blocks looked for one id too late",
        "entries that are here are copied again",
        "scan_blocks(txn, ledger_id, base - SPAN_MAX + 1, end):",
        "scan_blocks(txn, ledger_id, base - SPAN_MAX + 2, end):",
        (f"{_LOSSES}::test_what_lacks_is_found_wherever_blocks_and_steps_begin",),
    ),
    Mutant(
        "names of journal files removed without an order",
        "a power cut leaves a gap that a rebuild takes for damage",
        "if self._dropped:",
        "if False:",
        (f"{_TESTS}/journal/test_journal.py::test_no_gap_is_left_by_a_power_cut_that_brings_some_removed_names_back",),
    ),
    Mutant(
        "a replay forgets the fence of a row that is ahead of it",
        "no start succeeds after a power cut in a checkpoint",
        "if row is not None and row.key == key and row.fenced:",
        "if False:",
        (
            "tests/unit/storage/ledgers/test_replaced_keys.py::"
            "test_a_checkpoint_amid_a_replay_keeps_the_fence_of_a_row_that_is_ahead",
        ),
    ),
    Mutant(
        "only a file system may refuse to exchange names",
        "in a container that forbids the call, a bookie does not start once most of its index is free",
        "        if e.errno not in _NO_EXCHANGE:\n",
        "        if e.errno != errno.ENOTSUP:\n",
        ("tests/unit/storage/index/test_shrink.py::test_a_system_that_does_not_exchange_names_leaves_it_as_it_is",),
    ),
    Mutant(
        "a journal's last frame left in the page cache",
        "a power cut during a start keeps the bookie from starting, a later one an index from being made anew",
        "write_again(self._files, directory, frame)",
        "pass",
        (
            f"{_TESTS}/journal/test_journal_faults.py::test_a_crash_at_every_operation_of_a_restart",
            f"{_REBUILD}::test_a_frame_that_was_in_the_page_cache_alone_leaves_no_gap",
        ),
    ),
    Mutant(
        "the name of a cookie that is there taken for synced",
        "a power cut takes it, and the bookie does not start",
        "else:\n    self._files.sync_dir(directory)",
        "else:\n    pass",
        (f"{_TESTS}/test_identity.py::test_what_a_start_leaves_that_dies_is_synced_before_anything_is_stored",),
    ),
    Mutant(
        "a footer synced together with its blocks",
        "a power cut leaves a footer that names what was never on the disk",
        'Its blocks are synced before it is written: of a log with a sound footer none is torn.\n"""\nself._write()',
        'Its blocks are synced before it is written: of a log with a sound footer none is torn.\n"""',
        (
            f"{_TESTS}/entry_log/test_entry_log.py::test_a_log_with_a_footer_has_all_of_its_blocks_whatever_a_crash_left",
        ),
    ),
    Mutant(
        "memory that was freed before the flush for it begins not noticed",
        "writers stay paused until the next periodic checkpoint",
        "if not self.memory.full and not self.failed.done():",
        "if False:",
        (f"{_FULL}::test_memory_that_others_free_before_the_flush_for_it_begins_ends_the_wait",),
    ),
    Mutant(
        "flushes that have nothing to flush begun one after the other",
        "a bookie whose disk stalls takes all of a processor",
        "if not self.memory.full and not self.failed.done():",
        "if not self.failed.done():",
        (f"{_FULL}::test_memory_that_a_journal_alone_can_free_is_waited_for_without_a_flush",),
    ),
    Mutant(
        "the name of a journal file without a frame left unsynced by a start",
        "a power cut takes a file that a mark names, and the bookie does not start",
        "if journal.begun:  # marks will lie in the last one, whose name may not have been synced",
        "if False:",
        (f"{_TESTS}/journal/test_journal_faults.py::test_a_mark_names_no_journal_file_whose_name_a_power_cut_takes",),
    ),
    Mutant(
        "a full index has no name",
        "an operator is told that a disk is full, which isn't",
        "return OSError(errno.ENOSPC, what, self._env.path())",
        "return OSError(errno.ENOSPC, str(error))",
        ("tests/unit/runtime/test_ordered_store.py::test_a_store_that_is_full_names_itself_and_its_limit",),
    ),
    Mutant(
        "a worker calls back on its own thread",
        "the event loop and the journal's thread change a bookie's state at once",
        "loop.call_soon_threadsafe(done, result, error)",
        "done(result, error)",
        (
            "tests/unit/runtime/test_runtime.py::"
            "test_a_worker_calls_back_in_order_on_the_loop_with_a_result_or_an_error_and_not_once_it_is_closed",
        ),
    ),
    Mutant(
        "what is submitted to a worker has no error",
        "a bookie goes on as if nothing had been written, and answers nobody",
        "result, error = None, e\n",
        "result, error = None, None\n",
        (
            "tests/unit/runtime/test_runtime.py::"
            "test_a_worker_calls_back_in_order_on_the_loop_with_a_result_or_an_error_and_not_once_it_is_closed",
        ),
    ),
]
