"""What a writer can tell of the copies that its bookies lack."""

from __future__ import annotations

from bkpy.protocol.ledger.acks import BareBatch, Batch
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.protocol.ledger.shortfall import Shortfall


def metadata(*fragments: tuple[int, str]) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=1,
        state=LedgerState.OPEN,
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        digest="crc32c",
        ledger_key=bytes(32),
        fragments=tuple(Fragment(first, tuple(bookies)) for first, bookies in fragments),
    )


ABC = metadata((0, "abc"))


def batch(entry_id: int) -> Batch:
    return BareBatch(1, entry_id, entry_id, None)


def test_a_bookie_lacks_what_it_failed_to_take_once_that_is_acknowledged() -> None:
    incomplete = Shortfall()
    incomplete.failed("a", 5, ABC)
    incomplete.failed("a", 7, ABC)
    assert incomplete.up_to(4) == {}
    assert incomplete.up_to(5) == {"a": 5}


def test_what_is_accepted_later_is_not_lacking() -> None:
    incomplete = Shortfall()
    incomplete.failed("a", 5, ABC)
    again = [batch(5), batch(6)]
    incomplete.sent_again("a", again, 4)
    incomplete.accepted("a", again[0])
    assert incomplete.up_to(9) == {"a": 5}  # it may still fail
    incomplete.accepted("a", again[1])
    assert incomplete.up_to(9) == {}


def test_what_was_acknowledged_without_a_bookie_is_lacking_for_good() -> None:
    incomplete = Shortfall()
    incomplete.failed("a", 5, ABC)
    again = batch(8)
    incomplete.sent_again("a", [again], 7)
    incomplete.accepted("a", again)
    assert incomplete.up_to(9) == {"a": 5}


def test_a_bookie_that_fails_again_lacks_what_it_has_not_accepted() -> None:
    incomplete = Shortfall()
    incomplete.failed("a", 5, ABC)
    again = [batch(5), batch(6), batch(7)]
    incomplete.sent_again("a", again, 4)
    incomplete.accepted("a", again[0])
    incomplete.failed("a", 7, ABC)
    assert incomplete.up_to(9) == {"a": 6}
    incomplete.sent_again("a", again[1:], 5)
    for late in again[1:]:
        incomplete.accepted("a", late)
    assert incomplete.up_to(9) == {}


def test_a_bookie_that_had_accepted_everything_lacks_nothing() -> None:
    incomplete = Shortfall()
    incomplete.failed("a", 5, ABC)
    incomplete.sent_again("a", [], 4)
    assert incomplete.up_to(9) == {}


def test_a_bookie_that_was_replaced_lacks_what_is_still_its_own() -> None:
    incomplete = Shortfall()
    incomplete.failed("a", 5, ABC)
    incomplete.failed("b", 8, ABC)
    changed = metadata((0, "abc"), (8, "dec"))
    incomplete.moved(changed)
    incomplete.failed("a", 9, changed)  # late
    assert incomplete.up_to(9) == {"a": 5}
