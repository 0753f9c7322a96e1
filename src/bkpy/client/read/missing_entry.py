"""Decides which error a missing entry is: the one place where a reader promises that there is no such entry.

    answers of the write set              metadata was read again    the store is away
    all negative                          NoSuchEntryError           MetadataUnavailableError
    all negative, loss of it accepted     CorruptDataError           MetadataUnavailableError
    damaged, perhaps some negative        DigestMismatchError        DigestMismatchError
    any that can't be reached             BookieUnavailableError     BookieUnavailableError
    else any that TLS keeps this one from TlsError                   TlsError
    else any that forbids it              UnauthorizedError          UnauthorizedError
    else any that refuses the request     ProtocolError              ProtocolError
    else (some can't tell)                CorruptDataError           CorruptDataError

Pure. Whatever else the metadata store answered (the ledger was deleted, the client is closed) comes before all of it.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

from bkpy.errors import (
    BookieUnavailableError,
    BookKeeperError,
    CorruptDataError,
    DigestMismatchError,
    MetadataUnavailableError,
    NoSuchEntryError,
    ProtocolError,
    TlsError,
    UnauthorizedError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


class MissKind(enum.Enum):
    """Why a bookie didn't return an entry."""

    NEGATIVE = "it never acknowledged the entry"
    UNKNOWN = "it can't tell"
    DAMAGED = "its copy doesn't match the digest"
    UNAVAILABLE = "it can't be reached"
    UNTRUSTED = "it and this client can't agree on TLS"
    FORBIDDEN = "it does not allow this client to read"
    REFUSED = "it refuses the request, or its answer makes no sense"


class Miss(NamedTuple):
    """A bookie's answer in place of an entry."""

    kind: MissKind
    text: str


def missing_entry_error(
    ledger_id: int,
    entry_id: int,
    answers: Mapping[str, Miss],
    failure: BookKeeperError | None,
    *,
    loss_accepted: bool = False,
) -> BookKeeperError:
    """The error for an entry. `answers` are those of its whole write set, by bookie. The metadata were read again after
    these answers, or `failure` says why that failed. `loss_accepted`: the ledger was closed by an accepted loss, and
    perhaps only bookies that are gone held the entry.
    """
    if failure is not None and not isinstance(failure, MetadataUnavailableError):
        return failure
    kinds = {answer.kind for answer in answers.values()}
    replies = "; ".join(f"{bookie_id}: {answer.text}" for bookie_id, answer in sorted(answers.items()))
    error: type[BookKeeperError]
    if kinds == {MissKind.NEGATIVE} and failure is not None:
        error, what = MetadataUnavailableError, f"failed to find out whether other bookies have the entry: {failure}"
    elif kinds == {MissKind.NEGATIVE} and loss_accepted:
        error, what = CorruptDataError, "no bookie has the entry any more: its loss was accepted"
    elif kinds == {MissKind.NEGATIVE}:
        error, what = NoSuchEntryError, "no bookie of its write set has the entry"
    elif kinds <= {MissKind.DAMAGED, MissKind.NEGATIVE}:
        error, what = DigestMismatchError, "no replica has an intact copy"
    elif MissKind.UNAVAILABLE in kinds:
        error, what = BookieUnavailableError, "no replica of the entry could be read"
    elif MissKind.UNTRUSTED in kinds:
        error, what = TlsError, "no replica of the entry could be read"
    elif MissKind.FORBIDDEN in kinds:
        error, what = UnauthorizedError, "no replica of the entry could be read"
    elif MissKind.REFUSED in kinds:
        error, what = ProtocolError, "no replica of the entry could be read"
    else:
        error, what = CorruptDataError, "no replica of the entry could be read"
    return error(f"{what} ({replies})", ledger_id=ledger_id, entry_id=entry_id)
