"""The addresses that bookies listen at and are reached at."""

from __future__ import annotations

import ipaddress
import re


def split_address(address: str) -> tuple[str, int]:
    """(host, port) of `HOST:PORT`, where an IPv6 host is in brackets; `ValueError` if it isn't one."""
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        ipaddress.IPv6Address(host)
    elif ":" in host:
        raise ValueError(f"{address!r} is not HOST:PORT (an IPv6 address goes in brackets)")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address!r} is not HOST:PORT")
    return host, int(port)


def id_of(address: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.:-]", "", address).lstrip(".:-")  # what an IPv6 address has and an id must not


def is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
