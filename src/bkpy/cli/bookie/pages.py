"""Finds a running bookie's pages, and sends requests to them, for the commands that talk to a bookie."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bkpy.cli.completion import complete_bookie
from bkpy.cli.connecting import metadata, settings
from bkpy.config.address import split_address
from bkpy.errors import BookieUnavailableError, BookKeeperError, ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import aiohttp

    from bkpy.runtime.tls import TlsContext

F = TypeVar("F", bound="Callable[..., Any]")

_TIMEOUT_S = 10.0


def pages_options(command: F) -> F:
    """The options that name a bookie: `admin`, `bookie_id` and `uri`."""
    for option in (
        click.option(
            "--connect", "uri", metavar="URI", envvar="BKPY_CONNECT", help="The cluster.  [env: BKPY_CONNECT]"
        ),
        click.option(
            "--bookie",
            "bookie_id",
            metavar="ID",
            shell_complete=complete_bookie,
            help="The bookie, which --connect finds by its registration.",
        ),
        click.option(
            "--admin",
            "admin",
            metavar="HOST:PORT",
            help="The host and port of the bookie's metrics page; https://HOST:PORT if that has TLS.",
        ),
    ):
        command = option(command)
    return command


@contextlib.asynccontextmanager
async def open_pages(
    page: str, admin: str | None, bookie_id: str | None, uri: str | None
) -> AsyncIterator[BookiePages]:
    """The page with that path of the bookie that the options name."""
    import aiohttp

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as session:
        pages = BookiePages(session, page)
        await pages.find(admin, bookie_id, uri)
        yield pages


class BookiePages:
    """One page of a bookie. `find` comes first."""

    def __init__(self, session: aiohttp.ClientSession, page: str) -> None:
        self._session = session
        self._page = page
        self._where = ""  # HOST:PORT
        self._tls: Any = None  # the context, once it is known that the page has TLS
        self._host: str | None = None  # whose certificate is then expected

    async def get(self) -> dict[str, Any]:
        """What the page reports."""
        report: dict[str, Any] = await self._ask("GET", self._where)
        return report

    async def post(self, body: Any = None) -> dict[str, Any] | None:
        """Start the work that the page is for; None if that is running already."""
        report: dict[str, Any] | None = await self._ask("POST", self._where, body)
        return report

    async def command(self) -> dict[str, Any]:
        """Have the page do what it is for, at once. Raises `ConfigError` with the bookie's reason if that fails."""
        report: dict[str, Any] = await self._ask("POST", self._where, refusals=True)
        return report

    async def find(self, admin: str | None, bookie_id: str | None, uri: str | None) -> None:
        """Find the page's address: the given one, or the one in the bookie's registration."""
        if admin is not None:
            if admin.startswith("https://"):
                admin = admin.removeprefix("https://")
                self._tls = tls_context()
            try:
                split_address(admin)
            except ValueError as e:
                raise ConfigError(f"--admin: {e}") from e
            report = await self._ask("GET", admin)
            if bookie_id not in (None, report["bookie_id"]):
                raise ConfigError(f"at {admin} is bookie {report['bookie_id']}, not {bookie_id}")
            self._where = admin
            return
        if not bookie_id or not uri:
            raise click.UsageError("which bookie? Give --admin HOST:PORT, or --bookie ID and --connect URI")
        info = await _registered(uri, bookie_id)
        if not info.metrics_port:
            raise ConfigError("the bookie has no metrics page: run it with a metrics_port", bookie=bookie_id)
        host = info.address.rpartition(":")[0]
        if info.metrics_tls:
            self._tls, self._host = tls_context(), split_address(info.address)[0]
        # By default a bookie serves the page on its own machine alone, and this command runs there.
        places = list(dict.fromkeys(f"{h}:{info.metrics_port}" for h in ("127.0.0.1", host)))
        errors = []
        for place in places:
            try:
                if (await self._ask("GET", place))["bookie_id"] == bookie_id:
                    self._where = place
                    return
                errors.append(f"{place} belongs to another bookie")
            except BookKeeperError as error:
                errors.append(str(error))
        raise BookieUnavailableError(
            f"failed to reach its pages ({'; '.join(errors)}): run this on its machine, or give --admin HOST:PORT",
            bookie=bookie_id,
        )

    async def _ask(self, method: str, where: str, body: Any = None, *, refusals: bool = False) -> Any:
        """The answer, a JSON object; None if the work that the request starts is running already.

        With `refusals`, that answer is a `ConfigError` with its reason.
        """
        import aiohttp

        url = f"{'http' if self._tls is None else 'https'}://{where}{self._page}"
        headers = {"X-Bkpy": "1"}  # a browser sends it for no foreign web page
        secured = {} if self._tls is None else {"ssl": self._tls, "server_hostname": self._host}
        try:
            async with self._session.request(method, url, json=body, headers=headers, **secured) as response:
                report = await response.json()
                status = response.status
        except (aiohttp.ClientResponseError, ValueError) as error:  # whose text quotes the answer, in several lines
            raise BookieUnavailableError(
                f"no bookie answers at {where}: this is no metrics page", retriable=False
            ) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            why = str(error) or "no answer in time"
            raise BookieUnavailableError(f"no bookie answers at {where}: {why}") from error
        if status == 409:
            if refusals:
                raise ConfigError(str(report.get("error", report) if isinstance(report, dict) else report))
            return None
        if status != 200 or not isinstance(report, dict) or "bookie_id" not in report:
            why = report.get("error", report) if isinstance(report, dict) else report
            raise BookieUnavailableError(f"{where} refuses: {why}", retriable=False)
        return report


def tls_context() -> TlsContext:
    """The certificates that this command's settings name."""
    from bkpy.runtime.tls import Certificates, Side, TlsFiles

    given = settings()
    if given.tls_ca_file is None:
        raise ConfigError("the page has TLS: set BKPY_TLS_CA_FILE, BKPY_TLS_CERTIFICATE_FILE and BKPY_TLS_KEY_FILE")
    return Certificates(
        TlsFiles(given.tls_ca_file, given.tls_certificate_file, given.tls_key_file), Side.CLIENT
    ).context


async def _registered(uri: str, bookie_id: str) -> Any:
    from bkpy.metadata.bookies.registration import BookieDirectory
    from bkpy.metadata.cluster import open_cluster

    async with metadata(uri) as (store, root):
        await open_cluster(store, root)
        directory = BookieDirectory(store, root, store.runtime)
        await directory.refresh()
    found = directory.bookies | directory.read_only
    if bookie_id not in found:
        raise BookieUnavailableError("no such bookie is registered now: see `bkpy bookies list`", bookie=bookie_id)
    return found[bookie_id]
