"""`bkpy bookie health`: whether a bookie on this machine lives, or is ready, for supervisors that run commands."""

from __future__ import annotations

import http.client
import json
import os

import click

from bkpy.config.address import split_address
from bkpy.errors import BookieUnavailableError, ConfigError

_TIMEOUT_S = 3.0


@click.command()
@click.option(
    "--admin",
    metavar="HOST:PORT",
    help="The host and port of the bookie's metrics page; https://HOST:PORT if that has TLS.  [default: the port in "
    "BKPY_METRICS_PORT on this machine, with TLS if BKPY_METRICS_TLS says so]",
)
@click.option("--ready", is_flag=True, help="Also fail if the bookie does not serve clients, or they can't find it.")
def health(admin: str | None, ready: bool) -> int:
    """Report whether a running bookie lives and is ready.

    Exit status: 0 if it lives (with --ready: if it is ready), else 1.
    """
    host, port, secure = _place(admin)
    # The standard library's, which loads fast: supervisors run this command every few seconds.
    try:
        connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    except http.client.InvalidURL as e:
        raise ConfigError(f"--admin: {e}") from e
    if secure:
        from bkpy.cli.bookie.pages import tls_context

        context = tls_context()
        context.check_hostname = False  # a bookie's certificate need not be of 127.0.0.1
        connection = http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=context)
    try:
        connection.request("GET", "/readyz" if ready else "/healthz")
        response = connection.getresponse()
        report = json.loads(response.read())
        bookie_id, why = report["bookie_id"], report["why"]
    except (OSError, http.client.HTTPException) as e:
        raise BookieUnavailableError(f"no bookie answers at {host}:{port}: {e}") from e
    except (ValueError, KeyError, TypeError) as e:
        raise ConfigError(f"{host}:{port} answers, but it is no bookie's health page") from e
    finally:
        connection.close()
    click.echo(f"bookie {bookie_id} is {'ready' if why is None else f'alive, but not ready: {why}'}")
    return 0 if response.status == 200 else 1


def _place(admin: str | None) -> tuple[str, int, bool]:
    """Host, port, and whether to speak TLS there."""
    if admin is not None:
        try:
            return *split_address(admin.removeprefix("https://")), admin.startswith("https://")
        except ValueError as e:
            raise ConfigError(f"--admin: {e}") from e
    port = os.environ.get("BKPY_METRICS_PORT", "")
    if not port.isdecimal() or port == "0":
        raise click.UsageError("which bookie? Give --admin HOST:PORT, or set BKPY_METRICS_PORT as for the bookie")
    return (
        "127.0.0.1",
        int(port),
        os.environ.get("BKPY_METRICS_TLS", "").lower() in ("1", "true", "yes", "on", "t", "y"),
    )
