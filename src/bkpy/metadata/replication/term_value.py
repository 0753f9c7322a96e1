"""One value in the metadata store that an auditor leaves to the next, and that only the one whose term it is writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from bkpy.errors import MetadataConflictError
from bkpy.metadata.store.outcome import Changed, Done, Exists, Missing, NotDone, Superseded, Unknown, to_error
from bkpy.metadata.store.resolve import create_certainly, put_certainly, read_certainly
from bkpy.metadata.store.store import Check, Create, MetadataStore, NoNode

if TYPE_CHECKING:
    from bkpy.metadata.store.outcome import CreateOutcome, PutOutcome


class TermValue:
    """The value at `path`. Writes need the node `guard` to be there, that of the auditor's term."""

    def __init__(self, store: MetadataStore, path: str, *, guard: str, attempts_max: int) -> None:
        self._store = store
        self._path = path
        self._guard = guard
        self._attempts_max = attempts_max
        self._version: int | None = None

    async def read(self) -> bytes | None:
        """The value; None if there is none. Raises `MetadataUnavailableError`."""
        found = await read_certainly(self._store, self._path)
        self._version = None if found is None else found[1]
        return None if found is None else found[0]

    async def write(self, value: bytes) -> None:
        """Replace the value that was read or written last.

        Raises `MetadataConflictError` when the term is over. After a `MetadataUnavailableError` it is to be read again.
        """
        check = Check(self._guard, 0)
        outcome: CreateOutcome | PutOutcome
        if self._version is None:
            create = Create(self._path, value)
            outcome = await create_certainly(self._store, create, check, attempts_max=self._attempts_max)
        else:
            outcome = await put_certainly(
                self._store, self._path, value, self._version, check, attempts_max=self._attempts_max
            )
        match outcome:
            case Done():
                self._version = outcome.version
            case Missing() | Exists() | Changed() | Superseded():
                raise _over(outcome_unknown=isinstance(outcome, Superseded))
            case NotDone() | Unknown():
                raise to_error(outcome)
            case _:
                assert_never(outcome)

    async def written_ms(self) -> int:
        """When it was written, by the metadata store's clock. Raises `MetadataConflictError` if it is gone."""
        try:
            return await self._store.written_ms(self._path)
        except NoNode:
            raise _over(outcome_unknown=False) from None


def _over(*, outcome_unknown: bool) -> MetadataConflictError:
    return MetadataConflictError("there is another auditor", outcome_unknown=outcome_unknown, retriable=False)
