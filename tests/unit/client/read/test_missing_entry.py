"""What a reader says when no replica returned an entry: a table, and that it is total."""

from itertools import product

import pytest

from bkpy import errors
from bkpy.client.read.missing_entry import Miss, MissKind, missing_entry_error

N, U, D, X, R = MissKind.NEGATIVE, MissKind.UNKNOWN, MissKind.DAMAGED, MissKind.UNAVAILABLE, MissKind.REFUSED
AWAY = errors.MetadataUnavailableError("away")


def told(kinds: tuple[MissKind, ...], failure: errors.BookKeeperError | None = None) -> errors.BookKeeperError:
    answers = {f"bookie-{i}": Miss(kind, kind.value) for i, kind in enumerate(kinds)}
    return missing_entry_error(7, 3, answers, failure)


@pytest.mark.scenario(36)
@pytest.mark.parametrize(
    ("kinds", "error"),
    [
        ((N, N, N), errors.NoSuchEntryError),
        ((D, N, N), errors.DigestMismatchError),
        ((D, D, D), errors.DigestMismatchError),
        ((X, N, N), errors.BookieUnavailableError),
        ((X, D, N), errors.BookieUnavailableError),
        ((X, U, D), errors.BookieUnavailableError),
        ((U, N, N), errors.CorruptDataError),
        ((U, D, N), errors.CorruptDataError),
        ((R, R, R), errors.ProtocolError),
        ((R, U, D), errors.ProtocolError),
        ((R, X, N), errors.BookieUnavailableError),
    ],
)
def test_precedence_of_negatives_and_errors(kinds: tuple[MissKind, ...], error: type[Exception]) -> None:
    assert type(told(kinds)) is error


@pytest.mark.scenario(36)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_only_negatives_from_all_and_fresh_metadata_deny_an_entry(size: int) -> None:
    for kinds in product(MissKind, repeat=size):
        fresh, stale = told(kinds), told(kinds, AWAY)
        assert isinstance(fresh, errors.NoSuchEntryError) == (set(kinds) == {N})
        assert not isinstance(stale, errors.NoSuchEntryError)
        assert isinstance(stale, errors.MetadataUnavailableError) == (set(kinds) == {N})
        for error in (fresh, stale):
            assert (error.ledger_id, error.entry_id) == (7, 3)
            assert all(f"bookie-{i}: {kind.value}" in str(error) for i, kind in enumerate(kinds))


@pytest.mark.parametrize("failure", [errors.NoSuchLedgerError("gone"), errors.ClientClosedError("closed")])
def test_an_end_of_the_ledger_or_the_client_comes_first(failure: errors.BookKeeperError) -> None:
    assert all(told(kinds, failure) is failure for kinds in product(MissKind, repeat=2))


def test_an_entry_whose_loss_was_accepted_is_never_denied() -> None:
    for kinds in product(MissKind, repeat=2):
        for failure in (None, AWAY):
            answers = {f"bookie-{i}": Miss(kind, kind.value) for i, kind in enumerate(kinds)}
            error = missing_entry_error(7, 3, answers, failure, loss_accepted=True)
            assert not isinstance(error, errors.NoSuchEntryError)
            if set(kinds) != {N}:
                assert type(error) is type(told(kinds, failure))
