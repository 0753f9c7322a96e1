"""Brings a restored cluster to the point where it is like any other (`protocol/restore/restoring.py`).

    every bookie is here --> close every ledger, asking all bookies --> CLOSED --> every bookie reports --> CONFIRMED
             ^------------ other bookies are given up --------------------'

Invariants: each state is stored before what it permits begins; a call that was interrupted is completed by the next; an
operator names the bookies and accepts the losses that the cluster goes on without.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from bkpy.batching import batched_async
from bkpy.errors import (
    BookKeeperError,
    ClientClosedError,
    ConfigError,
    LedgerRecoveryError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    UnauthorizedError,
)
from bkpy.metadata import paths
from bkpy.metadata.audit_trail import ActKind, recorded
from bkpy.metadata.bookies.cookies import list_cookies
from bkpy.metadata.ledgers.all_ledgers import all_ledgers
from bkpy.metadata.logs.maintenance import log_of
from bkpy.metadata.restore_record import read_reports, read_restore, write_restore
from bkpy.metadata.store.outcome import Done, NotDone, Unknown, to_error
from bkpy.metadata.store.store import Delete
from bkpy.protocol.ledger.giving_up import unreadable
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.protocol.restore.restoring import Restore, RestoreState, obstacles, relocated
from bkpy.recovery.ledger_recovery import Everywhere
from bkpy.runtime.worker_pool import for_each

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection

    from bkpy.config.recovery import RecoverySettings
    from bkpy.metadata.audit_trail import AuditTrail
    from bkpy.metadata.restore_record import StoredRestore
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.replication.context import ReplicationContext

_NAMED_MAX: Final = 1000  # failed ledgers that are named


@dataclass
class ConfirmationProgress:
    """How far it is. `not_closed`: ledgers that couldn't be closed, and why; `waiting_for`: what bookies still do.

    `unanswered`: ledgers that couldn't be closed for a reason that may pass, and which.
    """

    state: RestoreState
    closed: int = 0
    not_closed: dict[int, str] = field(default_factory=dict)
    unanswered: dict[int, str] = field(default_factory=dict)
    waiting_for: list[str] = field(default_factory=list)


class RestoreConfirmation:
    """The confirmation of one cluster's restore, in an administrator's session."""

    def __init__(self, context: ReplicationContext, settings: RecoverySettings, trail: AuditTrail | None) -> None:
        self._context = context
        self._settings = settings
        self._trail = trail
        self._store, self._root = context.cluster.store, context.cluster.root

    async def restore(self) -> Restore | None:
        """The restore that the cluster comes from; None if it was never restored."""
        found = await read_restore(self._store, self._root)
        return None if found is None else found.restore

    async def run(
        self,
        *,
        without: Collection[str] = (),
        accept_loss: bool = False,
        collect_later: bool = False,
        progress: Callable[[ConfirmationProgress], None] = lambda state: None,
    ) -> Restore:
        """Confirm the restore, and return it.

        `without`: bookies that never come back. `accept_loss`: confirm although ledgers can't be closed, or bookies
        miss entries that nobody has. `collect_later`: bookies may delete ledgers that were created after the backup.
        Raises `ConfigError` and `LedgerRecoveryError` with all that keeps it from going on.
        """
        found = await self._found()
        confirmed = found.restore.state is RestoreState.CONFIRMED
        if confirmed and (found.restore.collects_later or not collect_later):
            return found.restore
        details = "ledgers created after the backup may be collected" if collect_later else ""
        if not confirmed:
            who, losses = ", ".join(sorted(without)) or "none", "accepted" if accept_loss else "not accepted"
            details = "; ".join(filter(None, (f"confirmed without {who}, losses {losses}", details)))
        async with recorded(self._trail, ActKind.RESTORE, self._root, details):
            return await self._confirm(found, without, accept_loss, collect_later, progress)

    async def _confirm(
        self,
        found: StoredRestore,
        without: Collection[str],
        accept_loss: bool,
        collect_later: bool,
        progress: Callable[[ConfirmationProgress], None],
    ) -> Restore:
        # Others have the places of the bookies that it was closed without: their reports count for every further call.
        given_up = tuple(sorted(set(without)))
        if found.restore.state is RestoreState.CLOSED and given_up and given_up != found.restore.given_up:
            await self._all_here(without)
            found = await write_restore(self._store, self._root, found.restore.with_fewer(), found.version)
        done = ConfirmationProgress(found.restore.state)
        if found.restore.state is RestoreState.RESTORED:
            bookies = await self._all_here(without)
            await self._close_all(bookies, {*bookies, *without}, done, progress)
            if done.unanswered:  # no loss follows from that: the entries may all be there
                raise _unanswered(done.unanswered)
            if done.not_closed and not accept_loss:
                raise _not_closed(done.not_closed)
            await self._relocate(set(without), bookies, accept_loss=accept_loss)
            found = await self._advance(found, given_up=given_up)
            done.state = found.restore.state
        if found.restore.state is RestoreState.CLOSED:
            await self._reported(found.version, without, done, progress, accept_loss=accept_loss)
            found = await self._advance(found, collects_later=collect_later)
        elif collect_later and not found.restore.collects_later:
            changed = replace(found.restore, collects_later=True)
            found = await write_restore(self._store, self._root, changed, found.version)
        return found.restore

    async def _found(self) -> StoredRestore:
        await self._store.sync(self._root)
        found = await read_restore(self._store, self._root)
        if found is None:
            raise ConfigError(f"the cluster under {self._root} was not restored from a backup: nothing to confirm")
        return found

    async def _advance(self, found: StoredRestore, **decided: Any) -> StoredRestore:
        restore = replace(found.restore.advanced(), **decided)
        others = []
        if restore.state is RestoreState.CONFIRMED:
            disabled = f"{self._root}/{paths.DISABLED}"
            if not restore.was_disabled and await self._store.exists(disabled):
                others = [Delete(disabled)]
        return await write_restore(self._store, self._root, restore, found.version, others)

    async def _all_here(self, without: Collection[str]) -> tuple[str, ...]:
        cookies, registered = await self._bookies()
        if found := obstacles(cookies, registered, without):
            raise ConfigError("the restore can't be confirmed yet:\n  " + "\n  ".join(found))
        return tuple(sorted(set(cookies) - set(without)))

    async def _bookies(self) -> tuple[list[str], frozenset[str]]:
        await self._context.directory.refresh()
        return await list_cookies(self._store, self._root), self._context.directory.readable

    # --- closing ------------------------------------------------------------------------------------------------------

    async def _close_all(
        self,
        bookies: tuple[str, ...],
        known: Collection[str],
        done: ConfirmationProgress,
        progress: Callable[[ConfirmationProgress], None],
    ) -> None:
        """Close every ledger that isn't; what fails is in `done`.

        Raises `MetadataConflictError` once the cluster has other bookies than the `known` ones.
        """

        async def close(metadata: LedgerMetadata) -> None:
            everywhere = Everywhere(bookies, leaves_gap=log_of(metadata) is not None)
            if joined := sorted(set(await list_cookies(self._store, self._root)).difference(known)):
                raise MetadataConflictError(
                    f"bookies {', '.join(joined)} have joined while ledgers were closed, and may have entries of the "
                    "others: call this again once all are here"
                )
            try:
                await self._context.recover_everywhere(metadata.ledger_id, everywhere)
                done.closed += 1
            except NoSuchLedgerError:
                return  # deleted meanwhile, as an operator deletes again what was deleted after the backup
            except (MetadataUnavailableError, ClientClosedError):
                raise  # of that, nothing follows for the ledger: it would be given up though its entries are there
            except BookKeeperError as error:
                # Bookies that don't allow this client to fence have said nothing of what they have.
                unanswered = error.retriable or isinstance(error, UnauthorizedError)
                _note(done.unanswered if unanswered else done.not_closed, metadata.ledger_id, str(error))
            progress(done)

        async for some in batched_async(self._open_ledgers(done), self._settings.integrity_flush_ledgers):
            await for_each(some, close, at_once=self._settings.integrity_ledgers_at_once)

    async def _open_ledgers(self, done: ConfirmationProgress) -> AsyncIterator[LedgerMetadata]:
        catalog = self._context.cluster.catalog
        async for some in all_ledgers(catalog, reads_at_once=self._settings.audit_reads_at_once):
            for ledger_id, metadata in some:
                if metadata is None:
                    _note(done.not_closed, ledger_id, "its metadata can't be read")
                elif metadata.state is not LedgerState.CLOSED:
                    yield metadata

    # --- bookies that never come back ---------------------------------------------------------------------------------

    async def _relocate(self, gone: set[str], present: tuple[str, ...], *, accept_loss: bool) -> None:
        """Put present bookies into the places of the ones that are gone. Raises `ConfigError` if too few are left."""
        if not gone:
            return
        short: list[int] = []

        async def relocate(metadata: LedgerMetadata) -> None:
            moved = await self._moved(metadata.ledger_id, gone, present)
            if moved is not None and unreadable(moved, moved.last_entry, present):
                short.append(moved.ledger_id)

        async for some in batched_async(self._ledgers_of(gone), self._settings.integrity_flush_ledgers):
            await for_each(some, relocate, at_once=self._settings.integrity_ledgers_at_once)
        if short and not accept_loss:
            named = ", ".join(map(str, sorted(short)[:10]))
            raise ConfigError(
                f"of {len(short)} ledgers ({named}) no bookie that is left could have all entries: start further "
                "bookies of the former cluster, or go on without these entries (--accept-loss)"
            )

    async def _moved(self, ledger_id: int, gone: set[str], present: tuple[str, ...]) -> LedgerMetadata | None:
        """The ledger's metadata afterwards; None if it isn't closed, or gone."""
        catalog = self._context.cluster.catalog
        for _ in range(self._settings.metadata_write_attempts_max):
            try:
                metadata, version = await catalog.read(ledger_id, fresh=True)
            except NoSuchLedgerError:
                return None
            if metadata.state is not LedgerState.CLOSED:
                return None
            moved = relocated(metadata, gone, present)
            if moved == metadata:
                return metadata
            outcome = await catalog.write(moved, version)
            if isinstance(outcome, Done):
                return moved
            if isinstance(outcome, NotDone | Unknown):
                raise to_error(outcome, ledger_id=ledger_id)
        raise MetadataConflictError("the ledger's metadata kept changing", ledger_id=ledger_id)

    async def _ledgers_of(self, names: set[str]) -> AsyncIterator[LedgerMetadata]:
        catalog = self._context.cluster.catalog
        async for some in all_ledgers(catalog, reads_at_once=self._settings.audit_reads_at_once):
            for _, metadata in some:
                if metadata is not None and not names.isdisjoint(metadata.needed_bookies):
                    yield metadata

    # --- reports ------------------------------------------------------------------------------------------------------

    async def _reported(
        self,
        version: int,
        without: Collection[str],
        done: ConfirmationProgress,
        progress: Callable[[ConfirmationProgress], None],
        *,
        accept_loss: bool,
    ) -> None:
        """Wait until each bookie has reported of a look that began when the record had this version.

        Losses are accepted once the reports are final: a bookie that failed, or has joined since, may have the entries.
        Raises `ConfigError` if one isn't here, or misses entries, and `MetadataConflictError` if the record has another
        version by now: then none ever reports of this one.
        """
        while True:
            cookies, registered = await self._bookies()
            if missing := obstacles(cookies, registered, without):
                raise ConfigError("the restore can't be confirmed yet:\n  " + "\n  ".join(missing))
            reports = await read_reports(self._store, self._root, version)
            expected = set(cookies) - set(without)
            if expected <= reports.keys() and (
                not accept_loss or all(reports[name].is_final(expected - {name}) for name in expected)
            ):
                break
            found = await self._found()
            if found.version != version:
                raise MetadataConflictError(
                    f"another call goes on with the restore, which is {found.restore.state.value} now: call this again"
                )
            done.waiting_for = obstacles(cookies, registered, without, reports)
            progress(done)
            await asyncio.sleep(self._settings.drain_look_interval_s)
        missing = obstacles(cookies, registered, without, reports)
        if missing and not accept_loss:
            raise ConfigError(
                "entries that the restored metadata name are on no bookie that is here:\n  "
                + "\n  ".join(missing)
                + "\nStart the bookies that have them and run this again in a while; delete ledgers that were deleted "
                "after the backup (`bkpy ledger delete`), and truncate logs again (`bkpy log truncate`); or "
                "accept that these entries stay unreadable (--accept-loss)"
            )


def _note(failed: dict[int, str], ledger_id: int, why: str) -> None:
    if len(failed) < _NAMED_MAX:
        failed[ledger_id] = why


def _unanswered(failed: dict[int, str]) -> LedgerRecoveryError:
    return LedgerRecoveryError(
        f"{len(failed)} ledgers can't be closed now: bookies gave no answer, refused this client, or took no entries "
        "back:\n  "
        + _named(failed)
        + "\nRun this again once the bookies are well and let this client write, or without one that never comes back "
        "(--without). This is no loss that can be accepted (--accept-loss): the entries may all be there"
    )


def _named(failed: dict[int, str]) -> str:
    some = [f"ledger {ledger_id}: {why}" for ledger_id, why in sorted(failed.items())[:10]]
    more = f"\n  and {len(failed) - 10} more" if len(failed) > 10 else ""
    return "\n  ".join(some) + more


def _not_closed(failed: dict[int, str]) -> LedgerRecoveryError:
    return LedgerRecoveryError(
        f"{len(failed)} ledgers can't be closed, for no bookie has what was acknowledged:\n  "
        + _named(failed)
        + "\nRun this again once the bookies that have it are here; or go on (--accept-loss): then they stay "
        "IN_RECOVERY, for `bkpy ledger recover --accept-loss`"
    )
