"""The options of a write to a log, checked as those of a read are."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from bkpy.errors import ConfigError
from bkpy.protocol.ledger.ledger_metadata import LEDGER_ID_MAX
from bkpy.protocol.log.log_list import checked_name
from bkpy.spark.options import SECURITY, checked_values, metadata_uri, read_password, seconds, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_WRITER_ID = re.compile(r"[\x21-\x7e]{1,255}")
_SPARKS_OWN: Final = {"checkpointlocation"}  # Spark hands over what it has read itself


@dataclass(frozen=True)
class SinkOptions:
    """Where batches are written, and by whom: `writer_id` and a number tell one batch from all others."""

    metadata_uri: str
    log: str
    writer_id: str
    batch: int | None = None  # of a batch query; a stream numbers its own
    timeout_s: float = 10.0
    session_timeout_s: float = 10.0
    password_file: str | None = None
    security: Mapping[str, str] = field(default_factory=dict)

    def client_settings(self) -> dict[str, Any]:
        """The settings of the clients that write and commit, as `bkpy.connect` takes them."""
        return {
            "read_timeout_s": self.timeout_s,
            "metadata_timeout_s": self.timeout_s,
            "metadata_refused_timeout_s": self.timeout_s,
            "session_timeout_s": self.session_timeout_s,
            **self.security,
        }

    def password(self) -> bytes:
        """The log's password. It is read wherever it is needed, so that it never travels with Spark's tasks."""
        return read_password(self.password_file)


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """The options that Spark was given; `ConfigError` naming the one at fault."""
    values = checked_values({k: text for k, text in given.items() if k.lower() not in _SPARKS_OWN}, _PARSERS)
    for name, why in (
        ("metadataServiceUri", ""),
        ("log", ": a write goes to a log"),
        ("writerId", ": without it, a repeated batch can't be recognised"),
    ):
        if _PARSERS[name][0] not in values:
            raise ConfigError(f"option {name} is missing{why}")
    return SinkOptions(**values)


def _writer_id(text: str) -> str:
    if not _WRITER_ID.fullmatch(text):
        raise ValueError("expected 1 to 255 visible ASCII characters without blanks")
    return text


_PARSERS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "metadataServiceUri": ("metadata_uri", metadata_uri),
    "log": ("log", checked_name),
    "writerId": ("writer_id", _writer_id),
    "batchId": ("batch", whole(0, LEDGER_ID_MAX)),
    "timeoutSeconds": ("timeout_s", seconds),
    "sessionTimeoutSeconds": ("session_timeout_s", seconds),
    "passwordFile": ("password_file", str),
    **{option: (setting, str) for option, setting in SECURITY.items()},
}
