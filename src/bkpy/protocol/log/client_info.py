"""Who writes a log, or holds a consumer's lease: parsed from the label that is stored for people.

client billing on host-1, pid 4711      a client with the setting client_name
host-1, pid 4711                        one without
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from bkpy.errors import ClientInfo

if TYPE_CHECKING:
    from bkpy.protocol.log.log_list import LogList

_LABEL = re.compile(r"(?:client (?P<name>.*) on )?(?P<host>.*), pid (?P<pid>[0-9]{1,10})", re.DOTALL)


def client_info(label: str, since_ms: int) -> ClientInfo:
    """What a stored label says; all of it is the host where it has another form."""
    found = _LABEL.fullmatch(label)
    if found is None:
        return ClientInfo(label, 0, "", since_ms / 1000)
    return ClientInfo(found["host"], int(found["pid"]), found["name"] or "", since_ms / 1000)


def writer_of(log_list: LogList) -> ClientInfo | None:
    """The client that may add segments; None if there is none."""
    return client_info(log_list.writer_label, log_list.writer_since_ms) if log_list.writer else None
