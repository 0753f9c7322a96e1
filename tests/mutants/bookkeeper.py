"""Defects in what is written for Apache BookKeeper's own protocol."""

from __future__ import annotations

from tests.mutants import Mutant

_HERE = "tests/unit/protocol/bookkeeper"
_ENTRIES = f"{_HERE}/test_bookkeeper_entries.py"
_STATUSES = f"{_HERE}/test_bookkeeper_statuses.py"
_PACKETS = f"{_HERE}/test_bookkeeper_packets.py"
_MESSAGES = f"{_HERE}/test_bookkeeper_messages.py"

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
]
