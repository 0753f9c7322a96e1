"""What the metadata store keeps about one ledger: an immutable value, its transitions and its JSON.

Invariants: ensemble size >= write quorum >= ack quorum >= 1; every fragment names `ensemble_size` distinct bookies;
fragments start at entry 0 and strictly ascend; a ledger has a last entry exactly when it is CLOSED, and a closed ledger
never changes its last entry, its length or its state again. A value that breaks one of these can't be constructed.

    OPEN -- in_recovery --> IN_RECOVERY -- closed --> CLOSED
    OPEN -- closed --> CLOSED
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import enum
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from bkpy.errors import (
    ConfigError,
    CorruptDataError,
    LedgerClosedError,
    UnauthorizedError,
    UnsupportedVersionError,
)
from bkpy.protocol.ledger.accepted_loss import AcceptedLoss
from bkpy.protocol.wire.records import ledger_key
from bkpy.stored_json import parsed

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT_VERSION = 1
LEDGER_KEY_BYTES = 32
LEDGER_ID_MAX = 2**63 - 1
ENTRY_ID_MAX = 2**63 - 1
DIGESTS = ("crc32c", "hmac-sha256")


class LedgerState(enum.StrEnum):
    OPEN = "OPEN"
    IN_RECOVERY = "IN_RECOVERY"
    CLOSED = "CLOSED"


# What each transition makes of each state; None is a refusal. `new_fragment` is the only one besides `closed` that
# recovery needs, for the ensembles that it changes in memory before its single closing write.
TRANSITIONS: Mapping[str, Mapping[LedgerState, LedgerState | None]] = {
    "in_recovery": {
        LedgerState.OPEN: LedgerState.IN_RECOVERY,
        LedgerState.IN_RECOVERY: LedgerState.IN_RECOVERY,
        LedgerState.CLOSED: None,
    },
    "closed": {
        LedgerState.OPEN: LedgerState.CLOSED,
        LedgerState.IN_RECOVERY: LedgerState.CLOSED,
        LedgerState.CLOSED: None,
    },
    "new_fragment": {
        LedgerState.OPEN: LedgerState.OPEN,
        LedgerState.IN_RECOVERY: LedgerState.IN_RECOVERY,
        LedgerState.CLOSED: None,
    },
    # Re-replication moves copies of closed ledgers too; of other ledgers, all but the last fragment's.
    "replace_bookie": {state: state for state in LedgerState},
}


@dataclass(frozen=True, slots=True)
class Fragment:
    """The entries from `first_entry` up to the next fragment's, and the bookies that hold them, in ensemble order."""

    first_entry: int
    bookies: tuple[str, ...]
    unknown: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.first_entry <= ENTRY_ID_MAX:
            raise ConfigError(f"a fragment can't start at entry {self.first_entry}")
        if len(set(self.bookies)) != len(self.bookies):
            raise ConfigError(f"an ensemble names a bookie twice: {', '.join(self.bookies)}")
        if not all(self.bookies):
            raise ConfigError("an ensemble has an empty bookie id")


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """Everything the cluster agrees on about a ledger: an immutable value.

    Methods that change it return another value and store nothing.
    """

    # What a subclass with another stored form has otherwise.
    _digests: ClassVar[tuple[str, ...]] = DIGESTS
    _ledger_key_bytes: ClassVar[int] = LEDGER_KEY_BYTES

    ledger_id: int
    """The id, which the path of the stored value says."""
    state: LedgerState
    """OPEN, IN_RECOVERY or CLOSED."""
    ensemble_size: int
    """How many bookies entries are spread over."""
    write_quorum: int
    """How many bookies get each entry."""
    ack_quorum: int
    """How many bookies have an entry on disk when it is acknowledged."""
    digest: str
    """What guards each entry: "crc32c" or "hmac-sha256"."""
    ledger_key: bytes = field(repr=False)
    """What bookies ask writers for."""
    fragments: tuple[Fragment, ...]
    """Ensembles, each with its first entry."""
    last_entry: int = -1
    """The last entry of a CLOSED ledger; -1 if it is empty or not CLOSED."""
    length: int = 0
    """Payload bytes of a CLOSED ledger."""
    created_ms: int = 0
    """When it was created, in milliseconds since the epoch."""
    owner_token: str = ""
    """Unique to the client and attempt that created it."""
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict, hash=False)
    """Names and bytes that were given at the creation."""
    caller_ids: bool = False
    """Whether appends name their entries' ids."""
    deferred_sync: bool = False
    """Whether entries are acknowledged before they are on disk."""
    accepted_loss: AcceptedLoss | None = field(default=None, hash=False)
    """What was known when it was closed though bookies that are gone may have had more; None if it was not."""
    unknown: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)
    """Fields of a newer version, which survive a rewrite."""

    def __post_init__(self) -> None:
        # The value is immutable, so it must not share a dictionary that somebody can still change.
        object.__setattr__(self, "custom_metadata", {key: bytes(value) for key, value in self.custom_metadata.items()})
        object.__setattr__(self, "unknown", dict(self.unknown))
        self._check_numbers()
        self._check_fragments()
        self._check_end()
        self._check_holes()

    def _check_numbers(self) -> None:
        if not 0 <= self.ledger_id <= LEDGER_ID_MAX:
            raise ConfigError(f"a ledger id is 0 to 2**63-1, not {self.ledger_id}")
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1:
            raise ConfigError(
                "ensemble size >= write quorum >= ack quorum >= 1 does not hold for "
                f"{self.ensemble_size}, {self.write_quorum}, {self.ack_quorum}",
                ledger_id=self.ledger_id,
            )
        if self.digest not in self._digests:
            raise ConfigError(
                f"a digest is one of {', '.join(self._digests)}, not {self.digest!r}", ledger_id=self.ledger_id
            )
        if len(self.ledger_key) != self._ledger_key_bytes:
            raise ConfigError(
                f"a ledger key has {self._ledger_key_bytes} bytes, not {len(self.ledger_key)}",
                ledger_id=self.ledger_id,
            )

    def _check_fragments(self) -> None:
        if not self.fragments or self.fragments[0].first_entry != 0:
            raise ConfigError("a ledger's first fragment starts at entry 0", ledger_id=self.ledger_id)
        for before, after in zip(self.fragments, self.fragments[1:], strict=False):
            if after.first_entry <= before.first_entry:
                raise ConfigError(
                    f"fragments must ascend, {after.first_entry} follows {before.first_entry}",
                    ledger_id=self.ledger_id,
                )
        for fragment in self.fragments:
            if len(fragment.bookies) != self.ensemble_size:
                raise ConfigError(
                    f"the fragment from entry {fragment.first_entry} has {len(fragment.bookies)} bookies, "
                    f"not {self.ensemble_size}",
                    ledger_id=self.ledger_id,
                )

    def _check_end(self) -> None:
        if self.state is not LedgerState.CLOSED:
            if self.last_entry != -1 or self.length != 0:
                raise ConfigError("only a closed ledger has a last entry and a length", ledger_id=self.ledger_id)
            return
        # A fragment starts behind an acknowledged entry, so a ledger that ended before it would have lost that one.
        if not self.fragments[-1].first_entry - 1 <= self.last_entry <= ENTRY_ID_MAX:
            raise ConfigError(
                f"a ledger whose last fragment starts at entry {self.fragments[-1].first_entry} can't end at "
                f"{self.last_entry}",
                ledger_id=self.ledger_id,
            )
        if self.length < 0 or (self.last_entry == -1 and self.length > 0):
            raise ConfigError(
                f"{self.length} bytes up to entry {self.last_entry} is no length", ledger_id=self.ledger_id
            )

    def _check_holes(self) -> None:
        if self.accepted_loss is None or not self.accepted_loss.holes:
            return
        if self.state is not LedgerState.CLOSED:
            raise ConfigError("only a closed ledger has holes", ledger_id=self.ledger_id)
        firsts = {fragment.first_entry for fragment in self.fragments}
        for first, last in self.accepted_loss.holes:
            if first not in firsts or (last + 1 not in firsts and last != self.last_entry):
                raise ConfigError(
                    f"the hole of entries {first} to {last} is not made of whole fragments", ledger_id=self.ledger_id
                )

    # --- what is where --------------------------------------------------------------------------------------------

    def is_hole(self, fragment_index: int) -> bool:
        """Whether it is recorded that nobody can return the entries of this fragment."""
        if self.accepted_loss is None:
            return False
        first = self.fragments[fragment_index].first_entry
        return any(start <= first <= end for start, end in self.accepted_loss.holes)

    @property
    def needed_bookies(self) -> frozenset[str]:
        """The bookies that ensembles name, but for the fragments that are holes: nobody needs their copies."""
        return frozenset(
            name
            for number, fragment in enumerate(self.fragments)
            if not self.is_hole(number)
            for name in fragment.bookies
        )

    def is_accepted_loss(self, entry_id: int) -> bool:
        """Whether the entry belongs to the ledger though bookies that had it may be gone: nobody may deny it."""
        return self.accepted_loss is not None and entry_id <= self.last_entry

    # --- transitions --------------------------------------------------------------------------------------------

    def _next(self, action: str) -> LedgerState:
        state = TRANSITIONS[action][self.state]
        if state is None:
            raise LedgerClosedError(
                f"the ledger is closed at entry {self.last_entry} and allows no {action}", ledger_id=self.ledger_id
            )
        return state

    @property
    def known_key(self) -> bytes:
        """The ledger's key as far as the metadata tell; empty if they don't."""
        return self.ledger_key

    def authorised(self, password: bytes) -> LedgerMetadata:
        """This; raises `UnauthorizedError` unless the password is the ledger's."""
        if self.ledger_key != ledger_key(password):
            why = "the password is not the ledger's" if password else "the ledger has a password, and none was given"
            raise UnauthorizedError(why, ledger_id=self.ledger_id)
        return self

    def in_recovery(self) -> LedgerMetadata:
        """The same ledger IN_RECOVERY; the same value if it is already. Raises `LedgerClosedError` when CLOSED."""
        state = self._next("in_recovery")
        return self if state is self.state else dataclasses.replace(self, state=state)

    def closed(self, last_entry: int, length: int) -> LedgerMetadata:
        """The ledger CLOSED at `last_entry` (-1: empty) with `length` payload bytes.

        Raises `LedgerClosedError` when CLOSED, and `ConfigError` for an end before the last fragment.
        """
        return dataclasses.replace(self, state=self._next("closed"), last_entry=last_entry, length=length)

    def replace_bookie(self, fragment_index: int, ensemble_index: int, new_id: str) -> LedgerMetadata:
        """The ledger with one bookie of a fragment replaced, which has to have all that belongs there.

        Raises `ConfigError` if that ensemble has it already, and for the last fragment of a ledger that isn't CLOSED:
        what belongs there nobody knows yet, and a later recovery would take its bookies' word for where it ends.
        """
        if not (0 <= fragment_index < len(self.fragments) and 0 <= ensemble_index < self.ensemble_size):
            raise ConfigError(
                f"there is no bookie {ensemble_index} in fragment {fragment_index}", ledger_id=self.ledger_id
            )
        if fragment_index == len(self.fragments) - 1 and self.state is not LedgerState.CLOSED:
            raise ConfigError(
                "no copy in the last fragment of a ledger that isn't closed can be moved", ledger_id=self.ledger_id
            )
        if self.is_hole(fragment_index):
            raise ConfigError("nobody has the entries of a hole, so its bookies stay", ledger_id=self.ledger_id)
        old = self.fragments[fragment_index]
        bookies = (*old.bookies[:ensemble_index], new_id, *old.bookies[ensemble_index + 1 :])
        new = dataclasses.replace(old, bookies=bookies)
        fragments = (*self.fragments[:fragment_index], new, *self.fragments[fragment_index + 1 :])
        return dataclasses.replace(self, state=self._next("replace_bookie"), fragments=fragments)

    def with_hole(self, first: int, last: int) -> LedgerMetadata:
        """The ledger with entries `first` to `last` recorded as a hole, in fragments of its own.

        Raises `ConfigError` unless it is CLOSED, its loss was accepted, and it has these entries.
        """
        if self.state is not LedgerState.CLOSED or self.accepted_loss is None:
            raise ConfigError("only a closed ledger whose loss was accepted has holes", ledger_id=self.ledger_id)
        if not 0 <= first <= last <= self.last_entry:
            raise ConfigError(f"entries {first} to {last} are not entries of the ledger", ledger_id=self.ledger_id)
        fragments: list[Fragment] = []
        ends = [*(fragment.first_entry - 1 for fragment in self.fragments[1:]), self.last_entry]
        for fragment, end in zip(self.fragments, ends, strict=True):
            cuts = (cut for cut in (first, last + 1) if fragment.first_entry < cut <= end)
            fragments.append(fragment)
            fragments.extend(dataclasses.replace(fragment, first_entry=cut) for cut in cuts)
        accepted_loss = self.accepted_loss.with_hole(first, last)
        return dataclasses.replace(self, fragments=tuple(fragments), accepted_loss=accepted_loss)

    def new_fragment(self, first_entry: int, bookies: tuple[str, ...]) -> LedgerMetadata:
        """The ledger with a new last fragment from `first_entry` on.

        A fragment that would start where the last one does replaces it, since no entry of the last one was ever
        acknowledged. Raises `LedgerClosedError` when CLOSED, and `ConfigError` for an entry before the last fragment.
        """
        state = self._next("new_fragment")
        kept = self.fragments[:-1] if first_entry == self.fragments[-1].first_entry else self.fragments
        return dataclasses.replace(self, state=state, fragments=(*kept, Fragment(first_entry, tuple(bookies))))

    def fragment_of(self, entry_id: int) -> Fragment:
        """The fragment that `entry_id` lies in, or would lie in; of the last one, every entry from its first on."""
        if entry_id < 0:
            raise ConfigError(f"there is no entry {entry_id}", ledger_id=self.ledger_id)
        return next(fragment for fragment in reversed(self.fragments) if fragment.first_entry <= entry_id)

    # --- the stored form ----------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """The stored value: JSON that a person can read, equal bytes for equal values."""
        known: dict[str, Any] = {
            "version": FORMAT_VERSION,
            "state": self.state.value,
            "ensemble_size": self.ensemble_size,
            "write_quorum": self.write_quorum,
            "ack_quorum": self.ack_quorum,
            "digest": self.digest,
            "ledger_key": self.ledger_key.hex(),
            "fragments": [
                {"first_entry": fragment.first_entry, "bookies": list(fragment.bookies)}
                | _sorted(fragment.unknown)  # never overlaps: unknown is what is left after the known names
                for fragment in self.fragments
            ],
            "last_entry": self.last_entry,
            "length": self.length,
            "created_ms": self.created_ms,
            "owner_token": self.owner_token,
            "custom_metadata": {
                key: base64.b64encode(value).decode("ascii") for key, value in _sorted(self.custom_metadata).items()
            },
            "caller_ids": self.caller_ids,
            "deferred_sync": self.deferred_sync,
        }
        if self.accepted_loss is not None:
            known["accepted_loss"] = self.accepted_loss.fields()
        return json.dumps(known | _sorted(self.unknown), indent=1, ensure_ascii=False).encode("utf-8")

    @classmethod
    def decode(cls, ledger_id: int, data: bytes) -> LedgerMetadata:
        """The value stored under `ledger_id`.

        Raises `UnsupportedVersionError` for a newer format and `CorruptDataError` for anything that isn't one.
        """
        try:
            fields = parsed(data)
            if not isinstance(fields, dict):
                raise ValueError(f"expected a JSON object, found {type(fields).__name__}")
            version = _integer(fields.pop("version"))
            if version < 1:
                raise ValueError(f"{version} is no format version")
        except (ValueError, KeyError) as error:
            raise CorruptDataError(f"ledger metadata is unreadable: {error!r}", ledger_id=ledger_id) from error
        if version > FORMAT_VERSION:
            raise UnsupportedVersionError(
                f"ledger metadata has format version {version}, this bkpy reads up to {FORMAT_VERSION}: upgrade it",
                ledger_id=ledger_id,
            )
        try:
            return cls._from_fields(ledger_id, fields)
        except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
            raise CorruptDataError(f"ledger metadata is damaged: {error!r}", ledger_id=ledger_id) from error

    @classmethod
    def _from_fields(cls, ledger_id: int, fields: dict[str, Any]) -> LedgerMetadata:
        take = fields.pop
        return cls(
            ledger_id=ledger_id,
            state=LedgerState(take("state")),
            ensemble_size=_integer(take("ensemble_size")),
            write_quorum=_integer(take("write_quorum")),
            ack_quorum=_integer(take("ack_quorum")),
            digest=_text(take("digest")),
            ledger_key=bytes.fromhex(take("ledger_key")),
            fragments=tuple(_fragment(item) for item in take("fragments")),
            last_entry=_integer(take("last_entry")),
            length=_integer(take("length")),
            created_ms=_integer(take("created_ms")),
            owner_token=_text(take("owner_token")),
            custom_metadata={
                key: base64.b64decode(value, validate=True) for key, value in take("custom_metadata").items()
            },
            caller_ids=_flag(take("caller_ids")),
            deferred_sync=_flag(take("deferred_sync")),
            accepted_loss=_accepted_loss(take("accepted_loss", None)),
            unknown=fields,
        )


def _sorted(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {key: mapping[key] for key in sorted(mapping)}


def _fragment(item: dict[str, Any]) -> Fragment:
    rest = dict(item)
    first_entry = _integer(rest.pop("first_entry"))
    return Fragment(first_entry, tuple(_text(bookie) for bookie in rest.pop("bookies")), rest)


def _accepted_loss(value: Any) -> AcceptedLoss | None:
    return None if value is None else AcceptedLoss.of(value)


def _integer(value: Any) -> int:
    if type(value) is not int:  # True is an int to isinstance
        raise ValueError(f"expected an integer, found {value!r}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, found {value!r}")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, found {value!r}")
    return value
