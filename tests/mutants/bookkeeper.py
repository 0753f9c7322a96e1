"""Defects in what is written for Apache BookKeeper's own protocol."""

from __future__ import annotations

from tests.mutants import Mutant

_HERE = "tests/unit/protocol/bookkeeper"
_ENTRIES = f"{_HERE}/test_bookkeeper_entries.py"
_STATUSES = f"{_HERE}/test_bookkeeper_statuses.py"
_PACKETS = f"{_HERE}/test_bookkeeper_packets.py"
_MESSAGES = f"{_HERE}/test_bookkeeper_messages.py"
_METADATA = f"{_HERE}/test_bookkeeper_ledger_metadata.py"
_CLUSTER = "tests/unit/metadata/bookkeeper/test_bookkeeper_cluster.py"
_CLIENT = "tests/unit/client/bookkeeper/test_bookkeeper_client.py"
_IMPORT = "tests/unit/admin/test_ledger_import.py"
_BOOKIES = "tests/unit/metadata/bookkeeper/test_bookkeeper_bookies.py"

_BOOKIE = "tests/unit/bookie/bookkeeper"
_STORED = f"{_BOOKIE}/test_entries_stored.py"
_MEMBERSHIP = f"{_BOOKIE}/test_bookkeeper_membership.py"
_CONNECTIONS = f"{_BOOKIE}/test_bookkeeper_connections.py"
_LAC = f"{_BOOKIE}/test_bookkeeper_lac.py"

MUTANTS: list[Mutant] = [
    Mutant(
        "an entry of another ledger accepted where its digest matches",
        "a reader gets the bytes of another ledger",
        'if ledger_id != self._ledger_id:\n    raise self._mismatch(f"the entry is of ledger {ledger_id}", entry_id)',
        "pass",
        (f"{_ENTRIES}::test_another_ledgers_entry_or_password_is_refused",),
    ),
    Mutant(
        "the header of an entry left out of its CRC-32C",
        "a changed length or last add confirmed is believed, and no entry is as Java's",
        "return _U32.pack(crc32c(data, crc32c(head)))",
        "return _U32.pack(crc32c(data))",
        (f"{_ENTRIES}::test_an_entry_is_as_java_makes_it", f"{_ENTRIES}::test_no_changed_bit_verifies"),
    ),
    Mutant(
        "a BookKeeper entry stored with length 0 in its record's header",
        "readers and recoveries get another length than the writer wrote, and the entry's digest no longer matches",
        "tail = _RECORD_TAIL.pack(entry_id, last_add_confirmed, length)",
        "tail = _RECORD_TAIL.pack(entry_id, last_add_confirmed, 0)",
        (f"{_ENTRIES}::test_an_entry_is_one_record_and_loses_nothing",),
    ),
    Mutant(
        "an unknown status of BookKeeper taken for a denial",
        "a recovery ends a ledger before entries that the bookie has acknowledged",
        "return _FROM_V2.get(code, Status.UNKNOWN)",
        "return _FROM_V2.get(code, Status.NO_SUCH_LEDGER)",
        (f"{_STATUSES}::test_what_nobody_knows_says_nothing",),
    ),
    Mutant(
        "what a bookie can't tell sent to v2 clients as 107",
        "Java's v2 client fails in its decoder, and never answers the application",
        "StatusCode.EUNKNOWNLEDGERSTATE: PacketCode.IO_ERROR,",
        "StatusCode.EUNKNOWNLEDGERSTATE: PacketCode.UNKNOWN_LEDGER_STATE,",
        (f"{_STATUSES}::test_no_bookie_sends_what_javas_v2_client_cannot_decode",),
    ),
    Mutant(
        "an entry of a batch read that runs past its reply handed out as far as it is there",
        "a reader gets a part of an entry",
        "if start > end or (at := start + _SIZE.unpack_from(body, at)[0]) > end:",
        "if start > end or (at := start + _SIZE.unpack_from(body, at)[0]) < 0:",
        (f"{_PACKETS}::test_entries_that_run_past_their_batch_are_refused",),
    ),
    Mutant(
        "an entry added under another id than its own",
        "an entry can't be read, and another one is denied although it was acknowledged",
        "if check_entry(body) != (ledger_id, entry_id):",
        "if check_entry(body) == (-1, -1):",
        (f"{_MESSAGES}::test_what_makes_no_sense_gets_an_answer",),
    ),
    Mutant(
        "the inner status of a response left unread",
        "a refused add counts as acknowledged",
        "if status == StatusCode.EOK and not isinstance(response, AuthExchange | StartTlsResponse):",
        "if response is None:",
        (f"{_MESSAGES}::test_a_status_that_nobody_knows_is_handed_out",),
    ),
    Mutant(
        "a BookKeeper ledger rewritten in the newest metadata format",
        "an old client of the same cluster can't read the ledger any more",
        "format_version=version,\nkept=",
        "kept=",
        (f"{_METADATA}::test_a_transition_keeps_the_format_that_was_read",),
    ),
    Mutant(
        "unknown fields of a BookKeeper ledger dropped",
        "a newer BookKeeper loses what it has stored of a ledger when bkpy recovers it",
        "message.MergeFromString(self.kept)",
        "message.MergeFromString(self.kept)\nmessage.DiscardUnknownFields()",
        (f"{_METADATA}::test_fields_that_nobody_knows_survive_each_transition",),
    ),
    Mutant(
        "any password opens a BookKeeper ledger",
        "the password of a ledger protects nothing",
        "if self.password != password:",
        "if False:",
        (f"{_METADATA}::test_another_password_is_refused",),
    ),
    Mutant(
        "bytes behind a ledger's binary metadata ignored",
        "damaged metadata are believed",
        "if len(found) != size:",
        "if len(found) < size:",
        (f"{_METADATA}::test_damage_is_refused",),
    ),
    Mutant(
        "a BookKeeper counter of ledger ids made again after its deletion",
        "two ledgers get the same id",
        "newest = high + 1",
        "newest = max(high, 1)",
        (f"{_CLUSTER}::test_a_counter_that_java_has_deleted_is_not_made_again",),
    ),
    Mutant(
        "a BookKeeper id made with bkpy's own number of bits",
        "bkpy and Java give out the same ids for different ledgers",
        "_HIGH_BITS: Final = 32",
        "_HIGH_BITS: Final = 31",
        (f"{_CLUSTER}::test_the_next_ids_after_the_short_ones_have_a_high",),
    ),
    Mutant(
        "the first endpoint of a bookie taken for the one of clients",
        "clients talk BookKeeper's protocol to an HTTP server",
        "if one.protocol == _PROTOCOL",
        "if one.protocol",
        (f"{_BOOKIES}::test_the_address_is_that_of_the_endpoint_for_clients",),
    ),
    Mutant(
        "ledgers created on BookKeeper bookies that are away",
        "an under-replication record that BookKeeper doesn't know is written into its cluster",
        "if self._stored_as.absent_allowed else ()",
        "",
        (f"{_BOOKIES}::test_no_ledger_is_created_on_bookies_that_are_away",),
    ),
    Mutant(
        "a fence for BookKeeper's clients answered before it is durable",
        "two writers: after a crash the old one goes on with a ledger that is closed",
        "if not await service.storage.fence(ledger_id, state.key):\n    return Status.UNKNOWN",
        "service.spawn(service.storage.fence(ledger_id, state.key), 'fence', list)",
        (f"{_STORED}::test_no_answer_to_a_fence_comes_before_it_is_durable",),
    ),
    Mutant(
        "an entry that may be lost denied to BookKeeper's clients",
        "a recovery ends a ledger before entries that were acknowledged",
        "code = StatusCode.EUNKNOWNLEDGERSTATE if _is_unknown(result, entry_id) else missing",
        "code = missing",
        (f"{_STORED}::test_a_bookie_that_has_lost_entries_denies_none",),
    ),
    Mutant(
        "the last entry of a ledger in limbo taken for its last one",
        "a reader stops before entries that were acknowledged",
        "if last.limbo:\n    code = StatusCode.EUNKNOWNLEDGERSTATE\nelif not last.known:",
        "if not last.known:",
        (f"{_STORED}::test_a_bookie_that_has_lost_entries_denies_none",),
    ),
    Mutant(
        "a batch read of BookKeeper that is longer than its client takes",
        "a client closes the connection instead of reading on",
        "if entry_id != wanted or (used > bytes_max and buffers):",
        "if entry_id != wanted:",
        (f"{_STORED}::test_a_batch_ends_at_its_limits_and_at_the_first_gap",),
    ),
    Mutant(
        "a batch read of BookKeeper with what is left of a record",
        "a bookie crashes on a block, or sends a part of an entry",
        'if offset > end:\n    raise CorruptDataError("the record runs',
        'if False:\n    raise CorruptDataError("the record runs',
        (f"{_ENTRIES}::test_records_that_do_not_fill_their_block_have_no_entries",),
    ),
    Mutant(
        "a batch read that goes on behind a gap",
        "a reader gets entries under wrong ids",
        "if entry_id != wanted or (used > bytes_max and buffers):",
        "if used > bytes_max and buffers:",
        (f"{_STORED}::test_a_batch_ends_at_its_limits_and_at_the_first_gap",),
    ),
    Mutant(
        "an add of v2 stored although its ledger is fenced",
        "an entry is acknowledged behind the end of a closed ledger",
        "if opened is None or of_ledger in fenced:",
        "if opened is None:",
        (f"{_STORED}::test_a_fence_stops_the_writer_but_not_a_recovery",),
    ),
    Mutant(
        "entries far apart put into one batch with their distance as its stride",
        "a bookie that a hostile client has written to doesn't start any more: its journal has ids out of range",
        "if 0 < stride <= _STRIDE_MAX:",
        "if 0 < stride:",
        (f"{_STORED}::test_whatever_ids_clients_choose_the_bookie_starts_again",),
    ),
    Mutant(
        "a bookie's protocol left out of its identity",
        "a bookie serves ledgers of another kind of cluster under the same ids",
        "if cookie.protocol != self._protocol:",
        "if cookie.protocol == '':",
        (f"{_MEMBERSHIP}::test_a_bookie_speaks_one_protocol_for_life",),
    ),
    Mutant(
        "reads beyond a connection's bound refused rather than left in the socket",
        "Java's client fails a read of a long range",
        'self.connection.pause("requests")',
        "self.connection.abort()",
        (f"{_CONNECTIONS}::test_no_read_is_refused_because_there_are_many",),
    ),
    Mutant(
        "a long poll that sleeps until its time is up",
        "a tailing reader sees each entry only when its poll ends",
        "while not await self._answered(header, request, waiter):\n    await waiter.changed.wait()",
        "while not await self._answered(header, request, waiter):\n    await asyncio.sleep(wait_s)",
        (f"{_LAC}::test_a_long_poll_is_answered_once_there_is_news",),
    ),
    Mutant(
        "an entry denied by whatever a BookKeeper bookie answers",
        "a recovery ends a ledger before entries that were acknowledged",
        "elif response.status == StatusCode.ENOENTRY:\n    if entry_id",
        "elif response.status:\n    if entry_id",
        (f"{_CLIENT}::test_recovery_ends_no_ledger_by_what_bookies_cannot_tell",),
    ),
    Mutant(
        "another BookKeeper entry taken for the one that was asked for",
        "a reader gets an entry twice, and never another one",
        "if found.entry_id < 0 or entry_id not in (None, found.entry_id):",
        "if found.entry_id < 0:",
        (f"{_CLIENT}::test_another_entry_than_the_one_asked_for_is_damage",),
    ),
    Mutant(
        "a damaged BookKeeper entry handed up as an empty one",
        "a reader gets data that nobody wrote",
        'return _unsound(b"".join(parts))',
        'return b"".join(parts)',
        (f"{_CLIENT}::test_what_all_have_damaged_is_no_entry",),
    ),
    Mutant(
        "a BookKeeper bookie fenced whatever it answers",
        "the old writer's appends are acknowledged after the recovery",
        "if response.status == StatusCode.EOK or denies_entry(response.status):",
        "if response.status is not None:",
        (f"{_CLIENT}::test_a_bookie_that_is_not_fenced_does_not_count",),
    ),
    Mutant(
        "BookKeeper's explicit last add confirmed with a length of 0",
        "a recovery stores a wrong length",
        "_UNKNOWN_LENGTH: Final = -1",
        "_UNKNOWN_LENGTH: Final = 0",
        (f"{_CLIENT}::test_the_length_is_not_that_of_an_explicit_last_add_confirmed",),
    ),
    Mutant(
        "a tail asks a BookKeeper bookie that doesn't wait again at once",
        "a tail of an empty ledger keeps a bookie busy",
        "self._answer(Op.WAIT_LAC, correlation_id, [int(Status.UNKNOWN), 0, False])",
        "self._read_lac(Op.WAIT_LAC, correlation_id, asked.ledger_id, fenced=False)",
        (f"{_CLIENT}::test_a_tail_of_a_ledger_without_entries_waits",),
    ),
    Mutant(
        "a BookKeeper ledger forgotten with its first reader",
        "a second reader of the ledger can't read any more",
        "if not self._users[ledger_id]:",
        "if True:",
        (f"{_CLIENT}::test_a_client_forgets_a_ledger_with_its_last_reader",),
    ),
    Mutant(
        "bkpy administers a BookKeeper cluster",
        "nodes that BookKeeper doesn't know are written into its tree",
        "_NotThere() if is_of_bookkeeper(client) else self._guard_of_all",
        "self._guard_of_all",
        (f"{_CLIENT}::test_what_is_not_offered_is_refused_in_one_line",),
    ),
    Mutant(
        "a client that has certificates speaks in the clear to a BookKeeper bookie without TLS",
        "passwords' keys and entries cross the network in the clear",
        'raise TlsError("the bookie has no TLS", bookie=self._owner.bookie_id)',
        "return",
        ("tests/unit/client/bookkeeper/test_bookkeeper_tls.py::test_a_bookie_without_tls_is_refused",),
    ),
    Mutant(
        "bkpy's under-replication records in a BookKeeper cluster",
        "BookKeeper's replication workers stop at nodes that they can't read",
        "has_marks=False",
        "has_marks=True",
        ("tests/unit/client/bookkeeper/test_bookkeeper_writing.py::test_a_bookie_that_refuses_is_replaced",),
    ),
    Mutant(
        "a refused batch of a BookKeeper add answered as stored",
        "an entry is acknowledged that no bookie has",
        "if self._statuses[batch] not in m.ENDS_WRITER:\n    self._statuses[batch] = status",
        "pass",
        (
            "tests/unit/client/bookkeeper/test_bookkeeper_writing.py::test_a_recovery_by_somebody_else_fences_the_writer",
        ),
    ),
    Mutant(
        "a BookKeeper add answered with its first entry",
        "entries are acknowledged that bookies have yet to store",
        "if not self._unanswered:\n    self._answer(",
        "if self._unanswered <= 1:\n    self._answer(",
        (
            "tests/unit/client/bookkeeper/test_bookkeeper_writing.py::test_no_entry_is_acknowledged_that_one_bookie_keeps_waiting",
        ),
    ),
    Mutant(
        "bytes in the clear behind START_TLS taken for what came with TLS",
        "whoever sits between client and bookie adds entries of his own",
        'if self._receive.partial:\n    raise ProtocolError("bytes in the clear after START_TLS")\nbreak',
        "pass",
        (f"{_BOOKIE}/test_start_tls.py::test_what_comes_in_the_clear_behind_start_tls_is_refused",),
    ),
    Mutant(
        "no word of clients of BookKeeper's that speak in the clear to a bookie with certificates",
        "the operator of the bookie doesn't learn why a writer finds no bookies",
        "self.service.refused_by_tls(Failure.PLAIN, self.address, _NO_TLS)",
        "pass",
        (f"{_BOOKIE}/test_start_tls.py::test_nothing_else_is_answered_in_the_clear",),
    ),
    Mutant(
        "a bookie serves BookKeeper's clients that would authenticate without a word",
        "an operator takes a cluster for protected that everybody writes to",
        "self._complain_of_authentication(request.plugin)",
        "pass",
        (f"{_BOOKIE}/test_bookkeeper_connections.py::test_a_client_that_would_authenticate_hears_that_it_needs_not",),
    ),
    Mutant(
        "a BookKeeper bookie that wants SASL said to refuse a key",
        "whoever writes looks for a wrong password, and the bookie has never looked at it",
        "return response.status == StatusCode.EUA and response.response is None",
        "return False",
        ("tests/unit/client/bookkeeper/test_bookkeeper_client.py::test_a_bookie_that_wants_authentication_is_named",),
    ),
    Mutant(
        "no TLS 1.2 with BookKeeper's clients",
        "Java's clients of older machines reach no bookie that has certificates",
        "if of_bookkeeper or side is Side.ZOOKEEPER:",
        "if side is Side.ZOOKEEPER:",
        (f"{_BOOKIE}/test_start_tls.py::test_a_client_may_have_no_newer_tls_than_1_2",),
    ),
    Mutant(
        "no TLS 1.2 with BookKeeper's bookies",
        "bookies of older machines are out of reach",
        "dialler = Dialler(settings, tls, of_bookkeeper=cluster.of_bookkeeper)",
        "dialler = Dialler(settings, tls)",
        ("tests/unit/client/bookkeeper/test_bookkeeper_tls.py::test_a_bookie_may_have_no_newer_tls_than_1_2",),
    ),
    Mutant(
        "a BookKeeper bookie refuses certificates without a word",
        "operators look at the network, where a certificate has expired",
        "with contextlib.suppress(OSError):\n    mine.send(last_words(error))",
        "pass",
        (f"{_BOOKIE}/test_start_tls.py::test_a_refused_client_is_told_why",),
    ),
    Mutant(
        "requests in the clear answered by a bookie with certificates",
        "everybody who reaches the port reads and writes",
        "if not self._secure:\n    self._take_in_the_clear(frame)\n    return",
        "pass",
        (f"{_BOOKIE}/test_start_tls.py::test_nothing_else_is_answered_in_the_clear",),
    ),
    Mutant(
        "a part of a BookKeeper ledger taken for its copy",
        "an import that was killed loses entries for good",
        "whole = copy.last_entry == original.last_entry",
        "whole = True",
        (f"{_IMPORT}::test_a_part_that_was_recovered_is_no_copy",),
    ),
    Mutant(
        "unfinished copies of an import stay",
        "each killed import leaves ledgers that nobody knows",
        "outcome = await self._catalog.delete_locked(copy_id, version, lock, *audit)",
        "return None",
        (f"{_IMPORT}::test_what_a_killed_import_has_left_is_made_again",),
    ),
    Mutant(
        "the length of an import's original trusted",
        "a ledger whose recovery by Java counted an entry that is not there is copied again by each import",
        "whole = copy.last_entry == original.last_entry",
        "whole = (copy.last_entry, copy.length) == (original.last_entry, original.length)",
        (f"{_IMPORT}::test_a_ledger_whose_recovery_by_java_counted_too_much_has_one_copy",),
    ),
    Mutant(
        "bytes in the clear behind a BookKeeper bookie's START_TLS begin what comes by TLS",
        "whoever sits between client and bookie denies entries",
        "if self._received:",
        "if False:",
        ("tests/unit/client/bookkeeper/test_bookkeeper_tls.py::test_bytes_in_the_clear_behind_the_answer_are_refused",),
    ),
    Mutant(
        "as many copies of one entry in memory as a client of BookKeeper's asks for",
        "one client takes all memory of a bookie, with a few kilobytes",
        "and sent < max(limit, held):",
        "and sent >= 0:",
        (f"{_CONNECTIONS}::test_a_client_that_asks_for_one_entry_again_and_again_holds_few_copies",),
    ),
    Mutant(
        "a task for each ledger that a client of BookKeeper's reads at once",
        "a few clients take all memory of a bookie",
        "self._queue.append(serving)",
        "self._spawn(serving)",
        (f"{_CONNECTIONS}::test_reads_of_many_ledgers_at_once_become_few_tasks",),
    ),
    Mutant(
        "each entry of a range behind a BookKeeper ledger's end asked for",
        "a recovery asks bookies for ten thousands of entries that nobody has",
        "len(self._denied) >= self._codecs.stride",
        "False",
        (f"{_CLIENT}::test_a_recovery_asks_for_few_entries_behind_the_end",),
    ),
    Mutant(
        "as many batches in a record of the journal as a client of BookKeeper's sends at once",
        "after a crash the bookie can't replay its journal, and never starts again",
        "return len(turn.ledger_ids) == BATCHES_MAX or turn.bytes >= self._turn_bytes_max",
        "return turn.bytes >= self._turn_bytes_max",
        (f"{_STORED}::test_what_arrives_at_once_is_stored_in_records_that_a_replay_takes",),
    ),
    Mutant(
        "all adds that have waited on a connection stored as one record",
        "what a bookie stores at once has no bound but the memory that it receives into",
        "return len(turn.ledger_ids) == BATCHES_MAX or turn.bytes >= self._turn_bytes_max",
        "return len(turn.ledger_ids) == BATCHES_MAX",
        (f"{_STORED}::test_what_has_waited_is_stored_in_parts_as_large_as_frames",),
    ),
    Mutant(
        "an answer taken for that of another request",
        "a client takes an entry for acknowledged that no bookie has",
        "if not sent.is_answered_by(response):",
        "if False:",
        (
            "tests/unit/client/bookkeeper/test_bookkeeper_writing.py::"
            "test_what_answers_something_else_acknowledges_nothing",
            f"{_CLIENT}::test_no_ledger_ends_by_denials_of_something_else",
        ),
    ),
    Mutant(
        "the line of damaged metadata in the error",
        "a ledger's password in logs and on terminals",
        'where = f"line {error.GetLine()}, column {error.GetColumn()}"',
        "where = str(error)",
        (f"{_METADATA}::test_no_error_has_the_password",),
    ),
    Mutant(
        "bytes of damaged metadata in the error",
        "a ledger's password in logs and on terminals, where one of its bytes is damaged",
        "        except UnicodeDecodeError:  # the same",
        "        except UnicodeEncodeError:",
        (f"{_METADATA}::test_no_error_has_the_password",),
    ),
    Mutant(
        "the empty password assumed where metadata have none",
        "the bookie refuses the right key of an old ledger, and takes anybody's",
        'return b"" if self.password is None else self.ledger_key',
        "return self.ledger_key",
        (f"{_MEMBERSHIP}::test_metadata_that_have_no_password_refuse_no_key",),
    ),
    Mutant(
        "a copy that isn't read back",
        "an import calls a copy verified whose entries nobody has looked at",
        "if found.digest() != contents.digest():",
        "if False:",
        (f"{_IMPORT}::test_a_copy_that_was_not_stored_as_it_was_read_is_none",),
    ),
    Mutant(
        "an import that goes by the copies that were there when it began",
        "two imports at the same time make two copies of a ledger",
        "await self._look()  # others may have made copies",
        "pass",
        (f"{_IMPORT}::test_imports_at_the_same_time_make_one_copy",),
    ),
    Mutant(
        "an import that goes on without its lock",
        "another import deletes the copy that this one calls finished",
        "if not await self._store.exists(lock.proof):",
        "if False:",
        (f"{_IMPORT}::test_an_import_that_has_lost_its_lock_finishes_no_copy",),
    ),
    Mutant(
        "an unfinished copy deleted without the lock",
        "two imports delete each other's unfinished copies",
        "held = Check(lock.proof, 0)\nreturn await delete_together(self._store, ledger, held, *audit, ",
        "return await delete_together(self._store, ledger, *audit, ",
        (f"{_IMPORT}::test_an_import_that_has_lost_its_lock_finishes_no_copy",),
    ),
    Mutant(
        "keys that a connection of BookKeeper's remembers after its end",
        "connections that hang up take the memory for the keys of those that are there",
        "if self._closed:\n    return seed",
        "if False:\n    return seed",
        (f"{_CONNECTIONS}::test_a_client_that_goes_while_its_adds_are_decided_leaves_no_keys",),
    ),
    Mutant(
        "adds of v2 taken in a run, whatever their key",
        "who knows no key adds to a ledger that its writer has opened on the same connection",
        "if given != key or not 0 <= entry_id <= ENTRY_ID_MAX:",
        "if not 0 <= entry_id <= ENTRY_ID_MAX:",
        (f"{_STORED}::test_another_key_opens_nothing",),
    ),
    Mutant(
        "adds of a striped ledger taken in a run by ids that follow each other",
        "an entry is stored under another one's id",
        "next_id += step",
        "next_id += 1",
        (f"{_STORED}::test_adds_of_both_protocols_on_one_connection_are_stored_in_their_order",),
    ),
    Mutant(
        "requests of v2 counted as ones of v3",
        "operators look for clients that are none",
        "self.service.metrics.packets += 1",
        "self.service.metrics.messages += 1",
        (f"{_CONNECTIONS}::test_requests_are_counted_by_protocol",),
    ),
    Mutant(
        "an explicit last add confirmed refused whose body is further than its request",
        "Java's writers publish none while they append",
        "if ledger_id != inner.ledgerId:",
        "if (ledger_id, last_add_confirmed) != (inner.ledgerId, inner.lac):",
        (f"{_LAC}::test_a_body_that_is_further_than_its_request_counts",),
    ),
    Mutant(
        "an explicit last add confirmed of another ledger stored",
        "readers get bytes whose digest is another ledger's",
        "if ledger_id != inner.ledgerId:",
        "if False:",
        (f"{_LAC}::test_a_body_of_another_ledger_is_refused",),
    ),
    Mutant(
        "a ledger's copy taken for that of another one with its id",
        "an import leaves out a ledger, and calls it copied",
        'of_this = copy.custom_metadata.get(_TOKEN, b"") == original.owner_token.encode()',
        "of_this = True",
        (f"{_IMPORT}::test_a_ledger_that_was_made_again_is_copied_again",),
    ),
    Mutant(
        "a ledger with damaged metadata left out of an import",
        "an import calls a cluster copied, and nobody hears of the ledger that it left out",
        "except (CorruptDataError, UnsupportedVersionError):\n    closed = True",
        "except (CorruptDataError, UnsupportedVersionError):\n    closed = False",
        (f"{_IMPORT}::test_a_ledger_with_unreadable_metadata_is_named_and_stops_no_other",),
    ),
    Mutant(
        "answers with an entry that was asked for several times counted as one of the usual size",
        "clients that read no answers take ten times the memory that the bookie has for answers",
        "else:  # an entry was asked for several times\n    place.takes(sent)",
        "",
        (f"{_CONNECTIONS}::test_all_answers_that_clients_have_yet_to_read_are_counted",),
    ),
    Mutant(
        "ranges of small entries as long as with bkpy's own bookies",
        "a busy bookie has not answered ten thousand requests when their time is over, and is taken for away",
        "min(settings.read_entries_max, RANGE_ENTRIES_MAX)",
        "settings.read_entries_max",
        (
            "tests/unit/client/bookkeeper/test_bookkeeper_client.py::"
            "test_a_range_of_small_entries_is_not_more_requests_than_its_time_is_enough_for",
        ),
    ),
    Mutant(
        "ranges of a recovery as long as with bkpy's own bookies",
        "no recovery of a ledger with thousands of small entries behind last add confirmed ends while bookies are slow",
        "min(settings.recovery_range_entries_max, RANGE_ENTRIES_MAX)",
        "settings.recovery_range_entries_max",
        ("tests/unit/client/bookkeeper/test_bookkeeper_client.py::test_a_recovery_has_its_time_for_few_requests_too",),
    ),
    Mutant(
        "a connection is closed for a bad frame before the adds in front of it are stored",
        "what came behind it by TLS is stored in their place, under their checksums",
        "            self.adds.end_turn()  # first:",
        "            # first:",
        (
            "tests/unit/bookie/bookkeeper/test_start_tls.py::"
            "test_what_follows_a_bad_frame_is_not_received_over_what_came_before_it",
        ),
    ),
    Mutant(
        "a connection of BookKeeper's takes what its loop hands on while it is closed",
        "adds behind a bad frame are stored, and nobody hears of it",
        "        if self._closing:\n            return  # asyncio's TLS hands on what it has decrypted\n"
        "        self.received_bytes += nbytes\n        if self._early",
        "        self.received_bytes += nbytes\n        if self._early",
        ("tests/unit/bookie/bookkeeper/test_start_tls.py::test_adds_behind_a_bad_frame_are_not_stored",),
    ),
    Mutant(
        "a client sends BookKeeper's bookies frames that are larger than they take",
        "the recovery of a ledger ends the connections of all others, again and again",
        "if isinstance(request, AddEntryRequest) and (size := sum(map(len, frame))) > limit:",
        "if isinstance(request, AddEntryRequest) and (size := sum(map(len, frame))) > limit + 100:",
        (
            "tests/unit/client/bookkeeper/test_bookkeeper_client.py::"
            "test_an_entry_that_v2_alone_has_a_frame_for_ends_no_connection",
        ),
    ),
    Mutant(
        "all requests that come at once to a bookie for BookKeeper's clients are taken at once",
        "a client makes the bookie use many times the memory of the bytes that it sends",
        'if "backlog" in self._pauses or self.tasks.have_enough(self.reads.taken):',
        "if False:",
        (
            "tests/unit/bookie/bookkeeper/test_bookkeeper_connections.py::"
            "test_what_a_client_sends_at_once_is_taken_as_it_is_served",
        ),
    ),
    Mutant(
        "frames that waited in the receive buffer are forgotten",
        "a client that sends many requests at once has no answer to some",
        '        if self._pauses == {"frames"}:\n            asyncio',
        "        if False:\n            asyncio",
        (
            "tests/unit/bookie/bookkeeper/test_bookkeeper_connections.py::"
            "test_what_a_client_sends_at_once_is_taken_as_it_is_served",
        ),
    ),
    Mutant(
        "a client that is aborted in its handshake is taken for one that is connected",
        "strangers without a certificate take the places of all clients, one by one and for good",
        "if secured is None or transport.is_closing():",
        "if secured is None:",
        (
            "tests/unit/bookie/bookkeeper/test_start_tls.py::"
            "test_a_client_whose_place_is_taken_in_its_handshake_counts_no_more",
        ),
    ),
]
