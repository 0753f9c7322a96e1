"""Metadata URIs: `zk://host:port,host:port/root`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bkpy.config.base import encodes
from bkpy.errors import ConfigError
from bkpy.metadata.store.store import check_path

DEFAULT_PORT = 2181
DEFAULT_ROOT = "/ledgers"
_EXPECTED = "expected zk://host:port,host:port/root, for example zk://127.0.0.1:2181/ledgers"
_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s:\[\]@?#]+))(?::(?P<port>[0-9]+))?")


@dataclass(frozen=True)
class MetadataUri:
    """Where the metadata is: ZooKeeper's servers, and the cluster's root node."""

    hosts: tuple[tuple[str, int], ...]
    root: str

    def __str__(self) -> str:
        names = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return f"zk://{','.join(names)}{self.root}"


def parse_uri(text: str) -> MetadataUri:
    """The parts of a metadata URI; the port defaults to 2181 and the root to /ledgers. Raises `ConfigError`."""
    if not isinstance(text, str):
        raise ConfigError(f"a metadata URI is a str, not {text!r}: {_EXPECTED}")
    if not encodes(text):
        raise ConfigError(f"{text!r} is no metadata URI: it has bytes that are no UTF-8")
    scheme, separator, rest = text.partition("://")
    if not separator or scheme != "zk":
        raise ConfigError(f"{text!r} is no metadata URI: {_EXPECTED}")
    servers, slash, path = rest.partition("/")
    hosts = tuple(_host(server, text) for server in servers.split(","))
    if len(set(hosts)) != len(hosts):
        raise ConfigError(f"{text!r} names a server twice")
    root = slash + path.rstrip("/") if path.rstrip("/") else DEFAULT_ROOT
    try:
        check_path(root)
    except ValueError:
        raise ConfigError(f"{text!r} has no usable root node: {_EXPECTED}") from None
    return MetadataUri(hosts, root)


def _host(server: str, text: str) -> tuple[str, int]:
    found = _HOST.fullmatch(server)
    if found is None or not (found["ipv6"] or _can_be_looked_up(found["name"])):
        raise ConfigError(f"{text!r} has no usable server {server!r}: {_EXPECTED}")
    port = int(found["port"]) if found["port"] else DEFAULT_PORT
    if not 1 <= port <= 65535:
        raise ConfigError(f"{text!r} has a port that is not in 1 to 65535")
    return found["ipv6"] or found["name"], port


def _can_be_looked_up(name: str) -> bool:
    """Whether a host can have the name. Another one would end the session when it is that server's turn."""
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return True
