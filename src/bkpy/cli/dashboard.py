"""`bkpy dashboard`: a page in the browser that shows a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
from typing import TYPE_CHECKING, Any, Final

import click

from bkpy.cli.connecting import connect_admin, connect_option, settings
from bkpy.cli.logs import log_format_option
from bkpy.cli.output.text import say
from bkpy.cli.running import run
from bkpy.config.address import split_address
from bkpy.config.password_file import read_password
from bkpy.errors import ConfigError
from bkpy.runtime.logs import log_to_stderr

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from bkpy.runtime.logs import LogFormat

DEFAULT_LISTEN: Final = "127.0.0.1:8080"
_CONNECTIONS_MAX: Final = 256
_TOKEN_BYTES: Final = 24
_TOKEN_CHARS_MIN: Final = 16


@click.command()
@connect_option
@click.option("--listen", metavar="HOST:PORT", default=DEFAULT_LISTEN, show_default=True, help="Where to serve it.")
@click.option("--allow-actions", is_flag=True, help="Let it drain, recover, collect and scrub, with a token.")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False),
    help="A file with the token.  [default: a new token, which is printed]",
)
@click.option(
    "--tls", is_flag=True, help="Serve it with TLS, to clients with a certificate.  [env: BKPY_TLS_CA_FILE and others]"
)
@log_format_option
def dashboard(
    uri: str, listen: str, allow_actions: bool, token_file: str | None, tls: bool, log_format: LogFormat
) -> None:
    """Serve a page that shows the cluster: health, bookies, ledgers, logs, healing, events. Ctrl-C ends it.

    It only shows, unless --allow-actions is given. Everybody who reaches the address sees what this client may see,
    apart from keys and entries: keep it on this machine, or use --tls.
    """
    try:
        host, port = split_address(listen)
    except ValueError as e:
        raise ConfigError(f"--listen: {e}") from e
    if token_file is not None and not allow_actions:
        raise click.UsageError("--token-file goes with --allow-actions")
    token = ""
    if allow_actions:
        token = secrets.token_urlsafe(_TOKEN_BYTES) if token_file is None else _token_in(token_file)
    if log_format == "json":
        log_to_stderr(logging.INFO, log_format)
    run(_serve(uri, host, port, token, tls, shown=token_file is None))


def _token_in(path: str | Path) -> str:
    token = read_password(str(path)).decode(errors="replace").strip()
    if len(token) < _TOKEN_CHARS_MIN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"a token has at least {_TOKEN_CHARS_MIN} printable ASCII characters", path=str(path))
    return token


async def _serve(uri: str, host: str, port: int, token: str, tls: bool, *, shown: bool) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with shown_at(uri, host, port, token=token, tls=tls) as where:
        click.echo(where)
        if token and shown:
            say(f"token for actions: {token}")
        say("Ctrl-C ends it.")
        await stopping.wait()


@contextlib.asynccontextmanager
async def shown_at(uri: str, host: str, port: int, *, token: str = "", tls: bool = False) -> AsyncIterator[str]:
    """Serve the page; where a browser finds it. With a token, actions are allowed."""
    from bkpy.admin.bookie_pages import ClusterPages
    from bkpy.client.client import replication_context
    from bkpy.config.recovery import RecoverySettings
    from bkpy.dashboard.actions import Actions
    from bkpy.dashboard.reading import LedgerReading, LogReading
    from bkpy.dashboard.server import Dashboard, links, serving
    from bkpy.dashboard.watching import ClusterWatch

    recovery = RecoverySettings()
    serves = _own_certificate() if tls else None
    async with contextlib.AsyncExitStack() as stack:
        admin = await stack.enter_async_context(connect_admin(uri, recovery))
        cluster = replication_context(admin.client).cluster
        clock = cluster.store.runtime.clock
        pages = await stack.enter_async_context(ClusterPages(clock, recovery, _for_pages()))
        watch = ClusterWatch(cluster, recovery, pages)
        app = Dashboard(
            watch,
            LedgerReading(admin, cluster.catalog),
            LogReading(admin),
            names=(host,),
            actions=Actions(admin, pages) if token else None,
            token=token,
            secured=serves is not None,
        )
        bound = await stack.enter_async_context(serving(app, host, port, serves, connections_max=_CONNECTIONS_MAX))
        watching = asyncio.create_task(watch.run(), name="dashboard")
        stack.callback(watching.cancel)
        yield links(host, bound, serves)


def _own_certificate() -> Any:
    from bkpy.runtime.tls import Certificates, Side, TlsFiles

    given = settings()
    if given.tls_ca_file is None or given.tls_certificate_file is None:
        raise ConfigError("--tls needs BKPY_TLS_CA_FILE, BKPY_TLS_CERTIFICATE_FILE and BKPY_TLS_KEY_FILE")
    files = TlsFiles(given.tls_ca_file, given.tls_certificate_file, given.tls_key_file)
    return Certificates(files, Side.BOOKIE).following(looking=True)


def _for_pages() -> Any:
    from bkpy.cli.bookie.pages import tls_context

    return None if settings().tls_ca_file is None else tls_context()
