"""The audit trail: who drained, decommissioned, deleted, accepted a loss or changed rights, when, and from where.

One node for each act, with a name that begins with its time. Where an act is one write, its node is in the same
transaction: both are there, or neither. Any other act is recorded before it begins, and again when it is done.

Invariants: an act of a client with an `Actor` is never done without its record; of each kind of act, about the newest
`audit_acts_max` are kept, whatever happens to other kinds.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import hashlib
import logging
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from bkpy.errors import CorruptDataError, MetadataConflictError, UnsupportedVersionError
from bkpy.metadata import paths
from bkpy.metadata.connect import zookeeper_credentials
from bkpy.metadata.store.outcome import Done, NotDone, Unknown, to_error
from bkpy.metadata.store.resolve import (
    children_if_there,
    create_certainly,
    delete_certainly,
    ensure_path,
    put_certainly,
    read_if_there,
)
from bkpy.metadata.store.store import Create, NoNode
from bkpy.metadata.stored_record import StoredRecord, take
from bkpy.runtime.process import this_user
from bkpy.runtime.tls import subject_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from bkpy.config.client import ClientSettings
    from bkpy.config.shared import MetadataSettings
    from bkpy.errors import BookKeeperError
    from bkpy.metadata.store.outcome import CreateOutcome
    from bkpy.metadata.store.store import MetadataStore
    from bkpy.runtime.interfaces import Runtime

_RECORD: Final = StoredRecord("the record of an act", 1)
_TIME_DIGITS: Final = 15
_TIDY_EVERY: Final = 20  # acts of one process
_READS_AT_ONCE: Final = 32

log = logging.getLogger("bkpy.audit")


class ActKind(enum.StrEnum):
    """What is recorded. Values are stored in names, and have no hyphen at their end or beginning."""

    DRAIN = "drain"
    CANCEL_DRAIN = "cancel-drain"
    DECOMMISSION = "decommission"
    RECOVER_BOOKIE = "recover-bookie"
    FORMAT = "format"
    COOKIE = "cookie"
    DELETE_LEDGER = "delete-ledger"
    DELETE_LOG = "delete-log"
    TRUNCATE_LOG = "truncate-log"
    DELETE_CONSUMER = "delete-consumer"
    FORGET_PRODUCER = "forget-producer"
    ACCEPT_LOSS = "accept-loss"
    RE_REPLICATION = "re-replication"
    PROTECT = "protect"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts, as the process itself says: nothing here is proof."""

    user: str  # of the operating system
    process: str  # its host and number
    client: str = ""  # `client_name`
    identities: tuple[str, ...] = ()  # "digest:alice", "certificate:CN=alice": what it shows to others


@dataclass(frozen=True, slots=True)
class RecordedAct:
    """One act. `done`: that is certain. Else it was begun: it failed, goes on, or nobody knows what became of it."""

    name: str  # of its node
    time_ms: int
    act: str
    subject: str
    details: str
    done: bool
    actor: Actor

    def to_json(self) -> dict[str, Any]:
        """The record as commands and the API show it."""
        return {
            "time_ms": self.time_ms,
            "act": self.act,
            "subject": self.subject,
            "details": self.details,
            "done": self.done,
            "user": self.actor.user,
            "process": self.actor.process,
            "client": self.actor.client,
            "identities": list(self.actor.identities),
        }

    def __str__(self) -> str:
        client = f", client {self.actor.client}" if self.actor.client else ""
        shown = f" ({', '.join(self.actor.identities)})" if self.actor.identities else ""
        state = "" if self.done else " (begun, outcome unknown)"
        details = f": {self.details}" if self.details else ""
        return f"{self.act} {self.subject}{details}{state}, by {self.actor.user}{shown} on {self.actor.process}{client}"


def actor_of(settings: MetadataSettings, runtime: Runtime, *, client: str = "") -> Actor:
    """This process, with the names of the credentials that its settings have; no secret is in it."""
    credentials = zookeeper_credentials(settings)
    shown = [f"{scheme}:{secret.partition(b':')[0].decode(errors='replace')}" for scheme, secret in credentials]
    for name in ("zookeeper_tls_certificate_file", "tls_certificate_file"):
        path = getattr(settings, name, None)
        if path is not None and (subject := subject_of(path)):
            shown.append(f"certificate:{subject}")
    return Actor(this_user(), runtime.process, client, tuple(dict.fromkeys(shown)))


def client_actor(settings: ClientSettings, runtime: Runtime) -> Actor:
    """The actor of a client with these settings."""
    return actor_of(settings, runtime, client=settings.client_name)


class AuditTrail:
    """The trail of the cluster under `root`. Without an `actor`, it is only read, and acts are not recorded."""

    def __init__(
        self, store: MetadataStore, root: str, runtime: Runtime, settings: MetadataSettings, actor: Actor | None = None
    ) -> None:
        self._store = store
        self._folder = f"{root}/{paths.AUDIT_TRAIL}"
        self._runtime = runtime
        self._settings = settings
        self._actor = actor
        self._count = 0

    # --- recording ----------------------------------------------------------------------------------------------------

    async def entry(self, act: ActKind, subject: object, details: str = "") -> tuple[Create, ...]:
        """What an act's transaction contains: the node of its record. Raises `MetadataUnavailableError`."""
        return await self._prepared(act, subject, details, done=True)

    @contextlib.asynccontextmanager
    async def recorded(self, act: ActKind, subject: object, details: str = "") -> AsyncIterator[None]:
        """Record the act of the block as begun, and when it has ended without an error, as done.

        Raises `MetadataUnavailableError`: then the act does not begin. Of one that failed or was cancelled the record
        stays as it is, since a part of it may be done.
        """
        nodes = await self._prepared(act, subject, details, done=False)
        for node in nodes:
            outcome = await create_certainly(self._store, node, attempts_max=self._settings.metadata_write_attempts_max)
            if not isinstance(outcome, Done):
                raise _not_recorded(outcome)
        yield
        for node in nodes:  # if this fails, the act is done all the same
            begun = _decode("", node.path, node.data)
            await put_certainly(self._store, node.path, _encode(replace(begun, done=True)), 0, attempts_max=1)

    async def _prepared(self, act: ActKind, subject: object, details: str, *, done: bool) -> tuple[Create, ...]:
        if self._actor is None:
            return ()
        if self._count % _TIDY_EVERY == 0:
            above = await ensure_path(
                self._store, self._folder, attempts_max=self._settings.metadata_write_attempts_max
            )
            if isinstance(above, NotDone):
                raise to_error(above)
            await self._tidy()
        self._count += 1
        time_ms = int(self._runtime.clock.time() * 1000)
        token = hashlib.sha256(f"{self._actor.process}/{id(self)}/{self._count}/{time_ms}".encode()).hexdigest()[:16]
        name = f"{time_ms:0{_TIME_DIGITS}d}-{act}-{token}"
        record = RecordedAct(name, time_ms, act, str(subject), details, done, self._actor)
        log.info("audit: %s", replace(record, done=False))
        return (Create(f"{self._folder}/{name}", _encode(record)),)

    async def _tidy(self) -> None:
        """Delete the oldest records of each kind beyond the bound. What fails is left to the next act."""
        by_act: dict[str, list[str]] = defaultdict(list)
        for name in sorted(await children_if_there(self._store, self._folder)):
            by_act[_act_of(name)].append(name)
        for names in by_act.values():
            over = len(names) - self._settings.audit_acts_max
            for name in (await self._oldest_first(names))[:over] if over > 0 else ():
                await delete_certainly(self._store, f"{self._folder}/{name}", attempts_max=1)

    async def _oldest_first(self, names: Sequence[str]) -> list[str]:
        """By the metadata store's clock: a name has that of the machine of the act, which may be years ahead."""
        written: list[int] = []
        for start in range(0, len(names), _READS_AT_ONCE):
            written += await asyncio.gather(*(self._written_ms(name) for name in names[start : start + _READS_AT_ONCE]))
        return [name for _, name in sorted(zip(written, names, strict=True))]

    async def _written_ms(self, name: str) -> int:
        try:
            return await self._store.written_ms(f"{self._folder}/{name}")
        except NoNode:
            return 0  # somebody else has deleted it

    # --- reading ------------------------------------------------------------------------------------------------------

    async def names(self, since_ms: int = 0) -> list[str]:
        """The names of the records since then, the oldest first."""
        since = f"{max(0, since_ms):0{_TIME_DIGITS}d}"
        return sorted(name for name in await children_if_there(self._store, self._folder) if name >= since)

    async def read(self, names: Sequence[str]) -> list[RecordedAct]:
        """The records of these names that are still there. One that can't be read has its kind and time alone."""
        found: list[RecordedAct | None] = []
        for start in range(0, len(names), _READS_AT_ONCE):
            some = names[start : start + _READS_AT_ONCE]
            found += await asyncio.gather(*(self._read(name) for name in some))
        return [record for record in found if record is not None]

    async def _read(self, name: str) -> RecordedAct | None:
        path = f"{self._folder}/{name}"
        found = await read_if_there(self._store, path)
        return None if found is None else _decode(name, path, found[0])


def recorded(
    trail: AuditTrail | None, act: ActKind, subject: object, details: str = ""
) -> contextlib.AbstractAsyncContextManager[None]:
    """As `AuditTrail.recorded`; nothing where acts are not recorded."""
    return contextlib.nullcontext() if trail is None else trail.recorded(act, subject, details)


async def entry_of(trail: AuditTrail | None, act: ActKind, subject: object, details: str = "") -> tuple[Create, ...]:
    """The record of an act for its transaction; nothing where acts are not recorded."""
    return () if trail is None else await trail.entry(act, subject, details)


def _not_recorded(outcome: CreateOutcome) -> BookKeeperError:
    if isinstance(outcome, NotDone | Unknown):
        return to_error(NotDone(outcome.error))  # of the act, that is: it was not begun
    return MetadataConflictError("the act was not begun: somebody deletes the nodes of the audit trail")


def _act_of(name: str) -> str:
    return name[_TIME_DIGITS + 1 :].rpartition("-")[0]


# --- the stored form --------------------------------------------------------------------------------------------------


def _encode(record: RecordedAct) -> bytes:
    return _RECORD.encode(record.to_json())


def _decode(name: str, path: str, data: bytes) -> RecordedAct:
    def made(fields: dict[str, Any]) -> RecordedAct:
        texts = {key: take(fields, key, str) for key in ("act", "subject", "details", "user", "process", "client")}
        identities = tuple(str(one) for one in take(fields, "identities", list))
        actor = Actor(texts["user"], texts["process"], texts["client"], identities)
        time_ms, done = take(fields, "time_ms", int), take(fields, "done", bool)
        return RecordedAct(name, time_ms, texts["act"], texts["subject"], texts["details"], done, actor)

    try:
        return _RECORD.decode(data, made, path=path)
    except (CorruptDataError, UnsupportedVersionError) as error:
        digits = name[:_TIME_DIGITS]
        time_ms = int(digits) if digits.isascii() and digits.isdigit() else 0
        return RecordedAct(name, time_ms, _act_of(name), "", f"unreadable: {error}", False, Actor("", ""))
