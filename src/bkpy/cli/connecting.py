"""How commands reach a cluster: the option that names it, the client's settings, and sessions made with them.

Settings come from `--set` and from variables `BKPY_<NAME>`; `--set` wins.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any, Final

import click

from bkpy.cli.output.text import say

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from bkpy.admin.client import AdminClient
    from bkpy.client.client import Client
    from bkpy.config.client import ClientSettings
    from bkpy.config.recovery import RecoverySettings
    from bkpy.config.shared import MetadataSettings
    from bkpy.metadata.store.store import MetadataStore

_SECURITY: Final = (
    "tls_ca_file",
    "tls_certificate_file",
    "tls_key_file",
    "zookeeper_tls_ca_file",
    "zookeeper_tls_certificate_file",
    "zookeeper_tls_key_file",
    "zookeeper_auth",
    "zookeeper_auth_file",
    "zookeeper_acl",
)


def _required_uri(ctx: click.Context, _: click.Parameter, uri: str | None) -> str:
    if not uri:
        ctx.fail("which cluster? Give --connect URI or set BKPY_CONNECT, for example to zk://127.0.0.1:2181/ledgers")
    return uri


connect_option = click.option(
    "--connect",
    "uri",
    metavar="URI",
    envvar="BKPY_CONNECT",
    callback=_required_uri,
    help="The cluster, as zk://HOST:PORT[,HOST:PORT...]/ROOT.  [env: BKPY_CONNECT]",
)


def given_settings(ctx: click.Context, _: click.Parameter, pairs: tuple[str, ...]) -> dict[str, Any]:
    """Settings from `NAME=VALUE`. A value is JSON: a number, true, false or a list; anything else is text."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise click.BadParameter(f"expected NAME=VALUE, not {pair!r}")
        if name == "zookeeper_auth":
            raise click.BadParameter("others can see a password in a command line: set BKPY_ZOOKEEPER_AUTH instead")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    return values


_client_settings: dict[str, Any] = {}
_notices: list[str] = []  # about these, until a command uses them


def set_client_settings(values: dict[str, Any]) -> None:
    """Make clients with these settings, and with variables `BKPY_<NAME>` for settings that aren't among them.

    Raises `ConfigError`, with the variable's name, for an unknown setting and for a value out of its range.
    """
    _notices.clear()
    from_environment = _from_environment()
    if values or from_environment:
        from bkpy.config.checking import build, current_names
        from bkpy.config.client import ClientSettings

        values = current_names(ClientSettings, values, "argument", _notices.append)
        origins = {name: f"variable BKPY_{name.upper()}" for name in from_environment.keys() - values.keys()}
        values = {**from_environment, **values}
        build(ClientSettings, values, origins)
    _client_settings.clear()
    _client_settings.update(values)


def security_settings() -> dict[str, Any]:
    """The clients' settings that bookies and recovery have as well: certificates and passwords."""
    return {name: value for name, value in _client_settings.items() if name in _SECURITY}


def _from_environment() -> dict[str, Any]:
    """The client's settings in variables. Bookies read theirs from the same environment, so others may be there."""
    given = {variable: text for variable, text in os.environ.items() if variable.startswith("BKPY_") and text}
    given.pop("BKPY_CONNECT", None)
    if not given:
        return {}  # as for most commands, which then import nothing
    from bkpy.config.client import ClientSettings
    from bkpy.config.loading import parse_text, variable_of, variables_of

    texts = variables_of(ClientSettings, given, _notices.append)
    return {n: parse_text(ClientSettings, n, text, f"variable {variable_of(n)}") for n, text in texts.items()}


def settings() -> ClientSettings:
    """The settings that clients are made with. The first use shows names that the next minor version refuses."""
    from bkpy.config.client import client_settings

    while _notices:
        say(_notices.pop(0))
    return client_settings(**_client_settings)


def connect(uri: str) -> AbstractAsyncContextManager[Client]:
    """A client of the cluster, with the settings from the command line."""
    from bkpy.client.connecting import Connecting

    return Connecting(uri, settings())


@contextlib.asynccontextmanager
async def connect_admin(uri: str, settings: RecoverySettings | None = None) -> AsyncIterator[AdminClient]:
    """An `AdminClient` in a session of its own, with the settings from the command line."""
    from bkpy.admin.client import AdminClient

    async with connect(uri) as client:
        yield AdminClient(client, settings)


@contextlib.asynccontextmanager
async def metadata(uri: str, secured: MetadataSettings | None = None) -> AsyncIterator[tuple[MetadataStore, str]]:
    """A session with the cluster's metadata: (store, root). `secured`: credentials other than the clients'."""
    from bkpy.metadata.connect import connect_store
    from bkpy.runtime.process import process_runtime

    store, root = await connect_store(
        uri,
        process_runtime(),
        session_timeout_s=settings().session_timeout_s,
        connect_timeout_s=settings().metadata_timeout_s,
        settings=secured or settings(),
    )
    try:
        yield store, root
    finally:
        await store.close()
