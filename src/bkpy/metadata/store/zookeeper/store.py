"""The metadata store on a ZooKeeper session: requests and replies are translated here, and nowhere else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiozk import exc, protocol

from bkpy.config.shared import MetadataSettings
from bkpy.errors import BookKeeperError, ClientClosedError, MetadataUnavailableError, UnauthorizedError
from bkpy.metadata.store.store import (
    BadVersion,
    Check,
    Create,
    Delete,
    MetadataStore,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    Put,
    Watch,
    check_path,
)
from bkpy.metadata.store.zookeeper.owners import owners
from bkpy.metadata.store.zookeeper.session import Session
from bkpy.metadata.store.zookeeper.watches import WatchKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bkpy.runtime.interfaces import Runtime
    from bkpy.runtime.tls import Certificates, TlsContext

_REFUSALS = {
    exc.NodeExists: NodeExists,
    exc.NoNode: NoNode,
    exc.BadVersion: BadVersion,
    exc.NotEmpty: NotEmpty,
    exc.NoChildrenForEphemerals: NoNode,
}
# Codes above this one come from a server in trouble, those below it from one that refused.
_API_ERRORS_FROM = -100
_THROTTLED = -127  # by a server that has too much to do: it has not carried out the request
_ANY_VERSION = -1
_DEFAULTS = MetadataSettings()


class ZooKeeperStore(MetadataStore):
    """A `MetadataStore` on one ZooKeeper session. With `auth`, only the same credentials may touch what it creates."""

    def __init__(
        self,
        hosts: Sequence[tuple[str, int]],
        runtime: Runtime,
        *,
        session_timeout_s: float = 10.0,
        call_timeout_s: float | None = None,
        tls: TlsContext | Certificates | None = None,
        auth: Sequence[tuple[str, bytes]] = (),
        settings: MetadataSettings = _DEFAULTS,
    ) -> None:
        self.runtime = runtime
        # Longer than a session lives without a connection, a call has nothing to wait for.
        self.call_timeout_s = session_timeout_s if call_timeout_s is None else call_timeout_s
        self._settings = settings
        self._session = Session(
            hosts,
            runtime,
            settings,
            session_timeout_s=session_timeout_s,
            call_timeout_s=self.call_timeout_s,
            tls=tls,
            auth=auth,
        )
        self.session_events = self._session.events
        protect = bool(auth) and settings.zookeeper_acl == "own"
        self._owners = owners(auth)
        self._acl = self._owners if protect else [protocol.UNRESTRICTED_ACCESS]
        self._watches: dict[Watch, None] = {}
        self._closed = False

    async def start(self, connect_timeout_s: float = 10.0, refused_timeout_s: float | None = None) -> None:
        """Connect. Raises `MetadataUnavailableError`, see `Session.start`."""
        await self._session.start(connect_timeout_s, refused_timeout_s)

    @property
    def session_id(self) -> int:
        return self._session.session_id

    @property
    def session_timeout_s(self) -> float:  # type: ignore[override]
        """The timeout that the server granted, in seconds."""
        return self._session.session_timeout_s

    async def _call(self, request: Any, path: str, *, write: bool) -> Any:
        try:
            return await self._session.call(request, write=write)
        except exc.ResponseError as error:
            raise _translated(error, path, write) from None

    def _create_request(self, operation: Create, sequential: bool = False) -> Any:
        check_path(operation.path + "0" if sequential else operation.path)
        request = protocol.CreateRequest(path=operation.path, data=bytes(operation.data), acl=self._acl)
        request.set_flags(ephemeral=operation.ephemeral, sequential=sequential)
        return request

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False, sequential: bool = False) -> str:
        request = self._create_request(Create(path, data, ephemeral), sequential)
        response = await self._call(request, path, write=True)
        return str(response.path)

    async def get(self, path: str) -> tuple[bytes, int]:
        check_path(path)
        response = await self._call(protocol.GetDataRequest(path=path, watch=False), path, write=False)
        return response.data or b"", response.stat.version

    async def put(self, path: str, data: bytes, expected_version: int) -> int:
        request = _put_request(Put(path, data, expected_version))
        response = await self._call(request, path, write=True)
        return int(response.stat.version)

    async def delete(self, path: str, expected_version: int | None = None) -> None:
        await self._call(_delete_request(Delete(path, expected_version)), path, write=True)

    async def children(self, path: str) -> list[str]:
        check_path(path)
        response = await self._call(protocol.GetChildrenRequest(path=path, watch=False), path, write=False)
        return sorted(response.children)

    async def children_made(self, path: str) -> int:
        check_path(path)
        response = await self._call(protocol.ExistsRequest(path=path, watch=False), path, write=False)
        # What a server tells is the number of changes, creations and deletions, in 32 bits that may have overflowed.
        changes = int(response.stat.child_version) % 2**32
        return (changes + int(response.stat.num_children)) // 2

    async def written_ms(self, path: str) -> int:
        check_path(path)
        response = await self._call(protocol.ExistsRequest(path=path, watch=False), path, write=False)
        return int(response.stat.modified)

    async def protect(self, path: str) -> None:
        """Restrict the node to clients with one of this store's credentials."""
        check_path(path)
        request = protocol.SetACLRequest(path=path, acl=self._owners, version=_ANY_VERSION)
        await self._call(request, path, write=True)

    async def exists(self, path: str) -> bool:
        check_path(path)
        return await self._is_there(path, watch=False)

    async def _is_there(self, path: str, *, watch: bool) -> bool:
        try:
            await self._call(protocol.ExistsRequest(path=path, watch=watch), path, write=False)
        except NoNode:
            return False
        return True

    async def multi(self, operations: Sequence[Operation]) -> list[str | int | None]:
        if not operations:
            return []
        request = protocol.TransactionRequest()
        for operation in operations:
            request.add(self._request(operation))
        response = await self._call(request, operations[0].path, write=True)
        results: list[str | int | None] = []
        for index, (operation, result) in enumerate(zip(operations, response.responses, strict=True)):
            if isinstance(result, (exc.RolledBack, exc.RuntimeInconsistency)):
                continue  # this one was well and not carried out because another one was not
            if isinstance(result, exc.ResponseError):
                raise _translated(result, operation.path, write=True, index=index)
            if isinstance(operation, Create):
                results.append(str(result.path))
            else:
                results.append(int(result.stat.version) if isinstance(operation, Put) else None)
        return results

    def _request(self, operation: Operation) -> Any:
        if isinstance(operation, Create):
            return self._create_request(operation)
        if isinstance(operation, Put):
            return _put_request(operation)
        if isinstance(operation, Delete):
            return _delete_request(operation)
        return _check_request(operation)

    async def sync(self, path: str) -> None:
        check_path(path)
        await self._call(protocol.SyncRequest(path=path), path, write=False)

    # --- watches ----------------------------------------------------------------------------------------------------

    def watch(self, path: str, *, children: bool = False) -> Watch:
        check_path(path)
        watch = Watch(path, children, self._arm, self._forget)
        self._watches[watch] = None
        if self._closed:
            watch.close()
        return watch

    def _forget(self, watch: Watch) -> None:
        self._session.watches.forget(watch)
        self._watches.pop(watch, None)

    async def _arm(self, watch: Watch) -> None:
        """Set the watch on the server, however long that takes: a lost connection doesn't end a watch."""
        while not watch.closed:
            self._session.watches.register(watch)
            try:
                kind = await self._set(watch)
            except ClientClosedError:
                return
            except MetadataUnavailableError as error:
                if not error.retriable:
                    raise
                await asyncio.sleep(self._settings.metadata_retry_pause_s)  # a server in trouble answers at once
            else:
                self._session.watches.register(watch, kind)
                return

    async def _set(self, watch: Watch) -> WatchKind:
        while watch.children:
            try:
                await self._call(protocol.GetChildrenRequest(path=watch.path, watch=True), watch.path, write=False)
                return WatchKind.CHILD
            except NoNode:  # then its creation is what to wait for, unless it was made since
                if not await self._is_there(watch.path, watch=True):
                    return WatchKind.EXIST
        return WatchKind.DATA if await self._is_there(watch.path, watch=True) else WatchKind.EXIST

    async def close(self) -> None:
        self._closed = True
        for watch in list(self._watches):
            watch.close()
        await self._session.close()


def _put_request(operation: Put) -> Any:
    check_path(operation.path)
    return protocol.SetDataRequest(path=operation.path, data=bytes(operation.data), version=operation.expected_version)


def _delete_request(operation: Delete) -> Any:
    check_path(operation.path)
    version = _ANY_VERSION if operation.expected_version is None else operation.expected_version
    return protocol.DeleteRequest(path=operation.path, version=version)


def _check_request(operation: Check) -> Any:
    check_path(operation.path)
    return protocol.CheckVersionRequest(path=operation.path, version=operation.expected_version)


def _translated(error: exc.ResponseError, path: str, write: bool, index: int | None = None) -> BookKeeperError:
    refusal = _REFUSALS.get(type(error))
    if refusal is not None:
        return refusal(path, index)
    if isinstance(error, exc.NoAuth):
        return UnauthorizedError(
            f"ZooKeeper's access control forbids this on {path}: zookeeper_auth is another one, or not given"
        )
    in_trouble = error.error_code > _API_ERRORS_FROM
    return MetadataUnavailableError(
        f"ZooKeeper answered {error} ({error.error_code}) for {path}",
        retriable=in_trouble or error.error_code == _THROTTLED,
        outcome_unknown=write and in_trouble,
    )
