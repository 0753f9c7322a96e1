"""Registration of bookies: a bookie keeps its node under `available/`, and clients keep a fresh list of these nodes.

Invariants: at most one living process is registered under a bookie id, and only with the cookie that the cluster has; a
bookie that lost its session registers again as soon as it has a new one; a client without the store goes on with its
last list; a client with the store is notified of each bookie that comes, goes, becomes read-only or writable, or
drains, and knows the other fields of a node within `bookie_refresh_interval_s`; a draining bookie is never among the
writable ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, assert_never

from bkpy.config.client import ClientSettings
from bkpy.config.shared import MetadataSettings
from bkpy.errors import (
    BookieUnavailableError,
    ClientClosedError,
    ConfigError,
    CorruptDataError,
    IdentityError,
    MetadataUnavailableError,
    NoSuchClusterError,
    NotEnoughBookiesError,
    UnauthorizedError,
)
from bkpy.metadata import paths
from bkpy.metadata.bookies.cookies import cookie_fields, instance_of, list_cookies, read_cookie
from bkpy.metadata.bookies.draining import Drains
from bkpy.metadata.store.outcome import (
    Changed,
    Done,
    Exists,
    Gone,
    Missing,
    NotDone,
    Superseded,
    Unknown,
    escalate_unknown,
    to_error,
)
from bkpy.metadata.store.resolve import (
    Answer,
    attempt,
    children_if_there,
    create_certainly,
    delete_certainly,
    put_certainly,
    read_certainly,
    read_if_there,
)
from bkpy.metadata.store.store import Check, Create, MetadataStore, NoNode, Watch
from bkpy.metadata.stored_record import StoredRecord, fields_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from bkpy.metadata.store.outcome import CreateOutcome
    from bkpy.runtime.interfaces import Runtime

log = logging.getLogger("bkpy.client")
bookie_log = logging.getLogger("bkpy.bookie")

_RECORD: Final = StoredRecord("a registration", version=1)
# A predecessor's session ends within its timeout and a tick of the server's, which is at most half a timeout.
TAKEOVER_TIMEOUTS = 1.5

_BOOKIE_DEFAULTS = MetadataSettings()
_CLIENT_DEFAULTS = ClientSettings()


@dataclass(frozen=True)
class BookieInfo:
    """A bookie's description of itself. `address` is "host:port"; `metrics_port` is 0 without a metrics page."""

    bookie_id: str
    address: str
    rack: str = ""
    region: str = ""
    version: str = ""
    free_bytes: int = 0
    read_only: bool = False
    metrics_port: int = 0
    metrics_tls: bool = False
    read_only_reason: str = ""
    in_limbo: bool = False  # it has lost data


class RegistrationFormat(NamedTuple):
    """How a kind of cluster stores what a bookie says of itself.

    `fields` takes a bookie's id and the value of its node. `address_of_unseen` takes the id and the cookie of a bookie
    that this client has never seen registered. `absent_allowed`: ledgers may be created on bookies that aren't there.
    """

    encode: Callable[[Mapping[str, Any]], bytes]
    fields: Callable[[str, bytes], dict[str, Any]]
    address_of_unseen: Callable[[str, bytes | None], str]
    absent_allowed: bool


def _address_in_cookie(bookie_id: str, cookie: bytes | None) -> str:
    if cookie is None:
        raise BookieUnavailableError("the cluster knows no such bookie", bookie=bookie_id, retriable=False)
    return str(cookie_fields(cookie)["address"])


JSON: Final = RegistrationFormat(
    encode=_RECORD.encode,
    fields=lambda _, data: fields_of(data),
    address_of_unseen=_address_in_cookie,
    absent_allowed=True,
)


class Registration:
    """A bookie's own node.

    `identity` names the bookie's directories, which only one process can hold locked: a node with the same identity
    belongs to a dead predecessor, and is replaced before its session times out. `cookie` is the bookie's cookie, which
    doesn't change while the bookie runs, though its version may. A bookie that was decommissioned while it was cut
    off, or whose id has another storage by now, doesn't register again. `on_death` is called when the registration
    ends: another process has taken the id, the cookie has changed, or the cluster is gone. What access control refuses
    is tried again, but for the first time.
    """

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        info: BookieInfo,
        runtime: Runtime,
        *,
        identity: str = "",
        cookie: bytes | None = None,
        on_death: Callable[[BaseException], None] | None = None,
        settings: MetadataSettings = _BOOKIE_DEFAULTS,
        stored_as: RegistrationFormat = JSON,
    ) -> None:
        paths.checked_bookie_id(info.bookie_id)
        self.info = info
        self._stored_as = stored_as
        self._store = store
        self._root = root
        self._runtime = runtime
        self._identity = identity
        self._cookie = cookie
        self._on_death = on_death
        self._settings = settings
        self._token = runtime.rng.randbytes(16).hex()  # unique among all processes that ever had the id
        self._lock = asyncio.Lock()
        self._registered = False
        self._reported = ""  # the last refusal that was logged
        self._watch: Watch | None = None
        self._task: asyncio.Task[Any] | None = None

    async def register(self) -> None:
        """Return when the bookie is registered; from then on it stays so.

        Raises `IdentityError`, after about a session timeout, if another living process has the id.
        """
        async with self._lock:
            await self._publish()
            self._registered = True
        self._task = self._runtime.spawn(
            self._keep(), name=f"registration of {self.info.bookie_id}", on_death=self._on_death
        )

    async def unregister(self) -> None:
        """Remove the node. Without the store this fails, and the node ends with the session."""
        self._registered = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        async with self._lock:
            for read_only in (False, True):
                await self._withdraw(self._path(read_only))

    async def set_read_only(self, read_only: bool, reason: str = "") -> None:
        """Move the node between the writable and the read-only bookies. While the store is away, waits for it.

        Clients that find too few writable bookies show `reason`.
        """
        async with self._lock:
            if (self.info.read_only, self.info.read_only_reason) == (read_only, reason):
                return
            self.info = dataclasses.replace(self.info, read_only=read_only, read_only_reason=reason)
        if self._watch is not None:
            self._watch.close()  # it watches the old path
        await self._publish_until_done()

    async def set_in_limbo(self, *, in_limbo: bool) -> None:
        """Update the node's field for lost data, in place. While the store is away, waits for it."""
        async with self._lock:
            self.info = dataclasses.replace(self.info, in_limbo=in_limbo)
        await self._publish_until_done()

    async def set_free_bytes(self, free_bytes: int) -> None:
        """Update the node's field for free space, in place. While the store is away, waits for it."""
        async with self._lock:
            self.info = dataclasses.replace(self.info, free_bytes=free_bytes)
        await self._publish_until_done()

    def _path(self, read_only: bool) -> str:
        return paths.available(self._root, self.info.bookie_id, read_only=read_only)

    async def _keep(self) -> None:
        """Register again whenever the node or the session may be gone."""
        with contextlib.suppress(ClientClosedError):  # the store was closed: the session is over, and its nodes with it
            while self._registered:
                self._watch = self._store.watch(self._path(self.info.read_only))
                try:
                    async for _ in self._watch:
                        await self._publish_until_done()
                finally:
                    self._watch.close()
                # Closed by `set_read_only`, or by the store, and then this says so.
                await self._publish_until_done()

    async def _publish_until_done(self) -> None:
        while self._registered:
            try:
                async with self._lock:
                    if self._registered:
                        await self._publish()
                self._reported = ""
                return
            except UnauthorizedError as error:  # rights may come back, and clients read here meanwhile
                self._report(error)
            except MetadataUnavailableError as error:
                if not error.retriable:
                    raise
            await asyncio.sleep(self._settings.metadata_retry_pause_s)

    def _report(self, error: UnauthorizedError) -> None:
        if str(error) != self._reported:
            self._reported = str(error)
            bookie_log.error(
                "failed to register bookie %s, going on, retrying in %g s: %s",
                self.info.bookie_id,
                self._settings.metadata_retry_pause_s,
                error,
            )

    async def _publish(self) -> None:
        # First the new place, then the old one: for a moment the bookie is in both, and counts as read-only.
        await self._claim(self._path(self.info.read_only))
        await self._withdraw(self._path(not self.info.read_only))

    async def _claim(self, path: str) -> None:
        deadline = self._runtime.clock.monotonic() + TAKEOVER_TIMEOUTS * self._store.session_timeout_s
        doubt = False  # whether this call may have created a node
        while True:
            value = self._value()
            made = await self._create(path, value)
            match made:
                case Done():
                    return
                case Exists() | Superseded():
                    pass
                case Missing() if made.index:
                    raise self._not_known()
                case Missing():
                    raise NoSuchClusterError(f"there is no cluster under {self._root}", bookie=self.info.bookie_id)
                case Unknown():
                    doubt = True
                    if self._runtime.clock.monotonic() >= deadline:
                        raise to_error(made, bookie=self.info.bookie_id)
                case NotDone():
                    raise to_error(escalate_unknown(made, doubt), bookie=self.info.bookie_id)
                case _:
                    assert_never(made)
            found = await self._look(path, doubt)
            if found is None:
                continue
            if found[0] == value:
                return
            owner = self._fields(found[0])
            if (owner.get("token"), owner.get("session")) == (self._token, _session(self._store)):
                await self._replace(path, value, found[1])  # a field has changed
            elif owner.get("token") == self._token or (self._identity and owner.get("identity") == self._identity):
                # It is of an earlier session of this process, or of a dead predecessor.
                await self._remove(path, found[1])
            elif not await self._gone(path, deadline):
                if "address" not in owner:
                    raise IdentityError(
                        f"what is registered with the id of this bookie can't be read: somebody wrote into {path}",
                        bookie=self.info.bookie_id,
                    )
                raise IdentityError(
                    f"another process, at {owner['address']}, is registered with the id of this bookie",
                    bookie=self.info.bookie_id,
                )

    async def _create(self, path: str, value: bytes) -> CreateOutcome:
        """Create the node, if the cookie is still the bookie's own. `Exists` also for this process's own node."""
        node = Create(path, value, ephemeral=True)
        if self._cookie is None:
            return await create_certainly(self._store, node, attempts_max=1)
        cookie = paths.cookie(self._root, self.info.bookie_id)
        found = await attempt(read_certainly(self._store, cookie))
        if isinstance(found, NotDone | Unknown):
            return NotDone(found.error)
        # Not by its version: another bookie's may have the same, and its own another one, if the store went back to an
        # older copy, or was restored.
        if isinstance(found, Answer) and found.value is not None and found.value[0] == self._cookie:
            return await create_certainly(self._store, node, Check(cookie, found.value[1]), attempts_max=1)
        here = await self._look(path, doubt=False)
        if here is None or self._fields(here[0]).get("token") != self._token:
            raise self._not_known()
        return Exists(path)

    def _not_known(self) -> IdentityError:
        return IdentityError(
            "the cluster doesn't know this bookie with these directories any more: it was decommissioned while it was "
            "cut off from the metadata store, or its id has other directories now. Stop it for good: other bookies "
            "have its entries",
            bookie=self.info.bookie_id,
        )

    async def _gone(self, path: str, deadline: float) -> bool:
        """Whether the node vanishes before the deadline."""
        watch = self._store.watch(path)
        try:
            async with asyncio.timeout(max(0.0, deadline - self._runtime.clock.monotonic())):
                async for _ in watch:
                    if not await self._store.exists(path):
                        break
        except TimeoutError:
            return False
        finally:
            watch.close()
        return True

    async def _withdraw(self, path: str) -> None:
        """Remove the node if it is this process's."""
        found = await read_if_there(self._store, path)
        if found is not None and self._fields(found[0]).get("token") == self._token:
            await self._remove(path, found[1])

    async def _look(self, path: str, doubt: bool) -> tuple[bytes, int] | None:
        """The node. An error says whether the node may be this call's own."""
        found = await attempt(read_if_there(self._store, path))
        if isinstance(found, Answer):
            return found.value
        if isinstance(found, NotDone | Unknown):
            raise to_error(escalate_unknown(found, doubt), bookie=self.info.bookie_id)
        raise found  # a read has no other refusal

    async def _replace(self, path: str, value: bytes, version: int) -> None:
        """Write the node, unless it has changed: then the caller looks again."""
        outcome = await put_certainly(self._store, path, value, version, attempts_max=1)
        match outcome:
            case Done() | Missing() | Changed() | Superseded():
                return
            case NotDone() | Unknown():
                raise to_error(outcome, bookie=self.info.bookie_id)
            case _:
                assert_never(outcome)

    async def _remove(self, path: str, version: int) -> None:
        """Remove the node, unless it has changed: then the caller looks again. One attempt, as it may come back."""
        outcome = await delete_certainly(self._store, path, version, attempts_max=1)
        match outcome:
            case Gone() | Missing() | Changed() | Superseded():
                return
            case NotDone() | Unknown():
                raise to_error(outcome, bookie=self.info.bookie_id)
            case _:
                assert_never(outcome)

    def _value(self) -> bytes:
        info = self.info
        fields = {
            "bookie_id": info.bookie_id,
            "address": info.address,
            "rack": info.rack,
            "region": info.region,
            "software": info.version,
            "free_bytes": info.free_bytes,
            "read_only": info.read_only,
            "read_only_reason": info.read_only_reason,
            "metrics_port": info.metrics_port,
            **({"metrics_tls": True} if info.metrics_tls else {}),
            "in_limbo": info.in_limbo,
            "token": self._token,
            "session": _session(self._store),
            "identity": self._identity,
        }
        return self._stored_as.encode(fields)

    def _fields(self, value: bytes) -> dict[str, Any]:
        """The fields of a node that may be anybody's, and anything."""
        try:
            return self._stored_as.fields(self.info.bookie_id, value)
        except CorruptDataError:
            return {}


def _session(store: MetadataStore) -> str:
    return f"{store.session_id:#x}"


def decode_registration(
    bookie_id: str, data: bytes, *, read_only: bool, stored_as: RegistrationFormat = JSON
) -> BookieInfo:
    """The fields of a bookie's node; unknown ones are ignored. Raises `CorruptDataError`."""
    fields = stored_as.fields(bookie_id, data)
    try:
        return BookieInfo(
            bookie_id=bookie_id,
            address=str(fields["address"]),
            rack=str(fields.get("rack", "")),
            region=str(fields.get("region", "")),
            version=str(fields.get("software", "")),
            free_bytes=int(fields.get("free_bytes", 0)),
            read_only=read_only,
            metrics_port=int(fields.get("metrics_port", 0)),
            metrics_tls=bool(fields.get("metrics_tls", False)),
            read_only_reason=str(fields.get("read_only_reason", "")),
            in_limbo=bool(fields.get("in_limbo", False)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptDataError(f"the bookie's registration is unreadable: {error!r}", bookie=bookie_id) from error


def _leaving(info: BookieInfo) -> BookieInfo:
    """The description of a draining bookie before it says itself that it is read-only."""
    return dataclasses.replace(info, read_only=True, read_only_reason="draining")


class AbsentBookie(NamedTuple):
    """A bookie that a ledger may be created without: its cookie's version, and its storage (`cookies.instance_of`)."""

    bookie_id: str
    cookie_version: int
    instance: str


class _Listing(NamedTuple):
    """Registrations below one node, None for an unreadable one, and how many it had had before they were listed."""

    made: int
    infos: Mapping[str, BookieInfo | None]


class BookieDirectory:
    """The bookies as a client sees them: `bookies` are writable, `read_only` aren't. Both are replaced, never changed.

    `draining` are the ids of draining bookies, registered or not. `absent_since` has bookies that this client saw, or
    created a ledger without, and that aren't registered, each with the monotonic time of that.

    The directory remembers addresses of absent bookies, since a reader must still find a bookie that is restarting. It
    forgets decommissioned ones, unless `in_use` names them.

    Every client is notified of every bookie that comes or goes, so it must not read all registrations then: with a
    thousand of each, the loss of a rack would cost a hundred million reads.
    """

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        runtime: Runtime,
        settings: ClientSettings = _CLIENT_DEFAULTS,
        stored_as: RegistrationFormat = JSON,
    ) -> None:
        self.bookies: dict[str, BookieInfo] = {}
        self.read_only: dict[str, BookieInfo] = {}
        self.draining: frozenset[str] = frozenset()
        self.absent_since: dict[str, float] = {}
        self.in_use: Callable[[], Collection[str]] = tuple  # the bookies that the client's writers name
        self.closed = False  # with the client: from then on nothing above changes
        self._store = store
        self._root = root
        self._runtime = runtime
        self._stored_as = stored_as
        self._listings = {read_only: _Listing(0, {}) for read_only in (False, True)}
        self._addresses: dict[str, str] = {}
        self._last_seen: dict[str, BookieInfo] = {}  # of registered bookies, and the ones that were
        self._drains = Drains(store, root, runtime, settings)
        self._changed = asyncio.Event()
        self._refreshing = asyncio.Lock()
        self._settings = settings
        self._reads = asyncio.Semaphore(settings.bookie_reads_at_once)
        self._watches: list[Watch] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._reported = ""  # why the list can't be read, if that was logged

    @property
    def readable(self) -> frozenset[str]:
        """The registered bookies, writable or not."""
        return frozenset(self.bookies) | self.read_only.keys()

    def is_here(self, bookie_id: str) -> bool:
        """Whether it is registered, and has lost no data."""
        info = self.bookies.get(bookie_id) or self.read_only.get(bookie_id)
        return info is not None and not info.in_limbo

    async def start(self) -> None:
        """Read the list and keep it fresh until `close`."""
        await self.refresh()
        for name in (paths.AVAILABLE, paths.READ_ONLY, paths.DRAINING):
            watch = self._store.watch(f"{self._root}/{name}", children=True)
            self._watches.append(watch)
            self._tasks.append(self._runtime.spawn(self._follow(watch), name=f"bookie directory, {name}"))
        self._tasks.append(self._runtime.spawn(self._refresh_regularly(), name="bookie directory, regularly"))

    async def close(self) -> None:
        self.closed = True
        for watch in self._watches:
            watch.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def refresh(self, *, whole: bool = True) -> None:
        """Read the list and all registrations now; without `whole`, of registrations only new ones."""
        async with self._refreshing:  # a slow reading must not replace a later one
            registered, draining = await asyncio.gather(self._read_both(whole=whole), self._drains.bookies())
            if not self.readable <= registered[0].keys() | registered[1].keys():
                # One that moved from one list to the other between the two reads was in neither of them.
                registered = await self._read_both(whole=False)
            writable, read_only = registered
            # A bookie that is moving may be in both lists, and then counts as read-only.
            refusing = {name: _leaving(info) for name, info in writable.items() if name in draining} | read_only
            self.bookies = {name: info for name, info in writable.items() if name not in refusing}
            self.read_only, self.draining = refusing, draining
            self._see({**writable, **read_only})
            self._reported = ""
        self._changed.set()
        self._changed = asyncio.Event()

    def _see(self, infos: Mapping[str, BookieInfo]) -> None:
        """Remember the addresses of registered bookies, and since when the others are absent."""
        now = self._runtime.clock.monotonic()
        gone = {name: self.absent_since.get(name, now) for name in self._addresses if name not in infos}
        self.absent_since = gone
        for info in infos.values():
            self._addresses[info.bookie_id] = info.address
            self._last_seen[info.bookie_id] = info

    async def _forget_gone(self) -> None:
        """Forget absent bookies without a cookie that writers could leave, and that none of them names any more.

        A client that lives for long would remember all bookies that there ever were, and have its writers looked at
        for each. Raises `MetadataUnavailableError`.
        """
        before = self._runtime.clock.monotonic() - self._settings.absent_bookie_replace_delay_s
        if not any(since <= before for since in self.absent_since.values()):
            return
        kept = {*await list_cookies(self._store, self._root), *self.in_use()}
        gone = {name for name, since in self.absent_since.items() if since <= before and name not in kept}
        self.absent_since = {name: since for name, since in self.absent_since.items() if name not in gone}
        for name in gone:
            del self._addresses[name]
            self._last_seen.pop(name, None)

    def last_seen(self, bookie_id: str) -> BookieInfo:
        """What a bookie has said of itself when it was registered last; of one never seen here, no rack is known."""
        address = self._addresses.get(bookie_id, "")
        return self._last_seen.get(bookie_id) or BookieInfo(bookie_id, address)

    async def known(self, without: Collection[str]) -> list[AbsentBookie]:
        """The bookies that have a cookie and don't drain, but for the ones in `without`.

        Raises `MetadataUnavailableError`. From now on one of them that isn't registered counts as absent for this
        client, seen before or not.
        """
        names = await list_cookies(self._store, self._root) if self._stored_as.absent_allowed else ()
        found = await asyncio.gather(
            *(self._known(name) for name in names if name not in without and name not in self.draining)
        )
        return [bookie for bookie in found if bookie is not None]

    async def _known(self, bookie_id: str) -> AbsentBookie | None:
        try:
            async with self._reads:
                cookie = await read_cookie(self._store, self._root, bookie_id)
            if cookie is None:
                return None  # it was decommissioned meanwhile
            address = str(cookie_fields(cookie[0])["address"])
        except (ConfigError, UnauthorizedError):
            return None  # nobody could connect to it, or not this client
        if bookie_id not in self._addresses:
            self._addresses[bookie_id] = address
            self.absent_since = {**self.absent_since, bookie_id: self._runtime.clock.monotonic()}
        return AbsentBookie(bookie_id, cookie[1], instance_of(cookie[0]))

    async def wait_for(self, count: int, timeout: float) -> None:  # noqa: ASYNC109 - seconds, like every wait of a client
        """Return when `count` bookies are writable. Raises `NotEnoughBookiesError` after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while len(self.bookies) < count:
                    await self._changed.wait()
        except TimeoutError:
            raise NotEnoughBookiesError(
                f"{len(self.bookies)} bookies take writes after {timeout} s, {count} are needed"
            ) from None

    async def changed(self) -> None:
        """Return when the list has been read the next time, changed or not."""
        await self._changed.wait()

    async def address_of(self, bookie_id: str) -> str:
        """The bookie's address, "host:port": as registered, as last known, or else from its cookie.

        Raises `BookieUnavailableError` for a bookie that the cluster doesn't know.
        """
        if bookie_id not in self._addresses:
            cookie = await read_cookie(self._store, self._root, bookie_id)
            address = self._stored_as.address_of_unseen(bookie_id, cookie and cookie[0])
            self._addresses.setdefault(bookie_id, address)  # a registration since then is newer than the cookie
        return self._addresses[bookie_id]

    async def _follow(self, watch: Watch) -> None:
        while not watch.closed:
            try:
                async for _ in watch:
                    await self.refresh(whole=False)
                return
            except ClientClosedError:
                return
            except UnauthorizedError as error:  # also of setting the watch; rights may come back
                self._report(error)
            except MetadataUnavailableError as error:
                if not error.retriable:
                    raise
            await asyncio.sleep(self._settings.metadata_retry_pause_s)
            watch.wake()

    def _report(self, error: UnauthorizedError) -> None:
        """Log once that this client goes on with its last list."""
        if str(error) != self._reported:
            self._reported = str(error)
            log.error(
                "failed to list the bookies, going on with the last list, retrying in %g s: %s",
                self._settings.metadata_retry_pause_s,
                error,
            )

    async def _refresh_regularly(self) -> None:
        # A watch on the list isn't woken by a change within a node, and a watch on each node would cost too much.
        with contextlib.suppress(ClientClosedError):
            while True:
                await asyncio.sleep(self._settings.bookie_refresh_interval_s)
                with contextlib.suppress(MetadataUnavailableError, UnauthorizedError):
                    await self.refresh()
                    await self._forget_gone()

    async def _read_both(self, *, whole: bool) -> tuple[dict[str, BookieInfo], dict[str, BookieInfo]]:
        """The writable and the read-only bookies."""
        return await asyncio.gather(self._read(False, whole=whole), self._read(True, whole=whole))

    async def _read(self, read_only: bool, *, whole: bool) -> dict[str, BookieInfo]:
        """The registrations of one kind; without `whole`, only new ones are read, unless that may miss a change."""
        parent, before = f"{self._root}/{paths.READ_ONLY if read_only else paths.AVAILABLE}", self._listings[read_only]
        made = await self._made(parent)  # before the list: what is created in between counts as new the next time, too
        names = [name for name in await children_if_there(self._store, parent) if name != "readonly"]
        wanted = [name for name in names if name not in before.infos]
        # With more creations than new names, one that was there before has a new registration, perhaps an address.
        if whole or made - before.made != len(wanted):
            wanted = names
        read = await asyncio.gather(*(self._read_one(f"{parent}/{name}", name, read_only) for name in wanted))
        known = {**before.infos, **dict(zip(wanted, read, strict=True))}
        listing = _Listing(made, {name: known[name] for name in names})
        self._listings[read_only] = listing
        return {info.bookie_id: info for info in listing.infos.values() if info is not None}

    async def _made(self, parent: str) -> int:
        """How many nodes it has had below it."""
        try:
            return await self._store.children_made(parent)
        except NoNode:
            return 0

    async def _read_one(self, path: str, bookie_id: str, read_only: bool) -> BookieInfo | None:
        try:
            async with self._reads:
                found = await read_if_there(self._store, path)
            if found is None:
                return None
            return decode_registration(bookie_id, found[0], read_only=read_only, stored_as=self._stored_as)
        except (CorruptDataError, UnauthorizedError):
            return None  # not a bookie's node, or not for this client: it must not hide all the bookies
