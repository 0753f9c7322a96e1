"""Who asks over HTTP, and by which name: so that no other site can make an administrator's browser ask.

A page that is reached by an IP address, or by a name that its process knows as its own, can't be one to which another
site has pointed its own name.
"""

from __future__ import annotations

import ipaddress
import re


def host_of(place: str) -> str:
    """The host of HOST or HOST:PORT, in lower case."""
    host = place.rpartition(":")[0] if re.search(r":[0-9]*$", place) and not is_address(place) else place
    return host.strip("[]").rstrip(".").lower()


def is_address(host: str) -> bool:
    """Whether it is an IP address, and no name, which somebody else could point at this machine."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_local(address: str | None) -> bool:
    """Whether a client at that IP address is on the same machine."""
    try:
        ip = ipaddress.ip_address(address or "")
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    return (mapped or ip).is_loopback
