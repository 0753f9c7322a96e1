"""The settings of how a bookie protects itself from those who reach its port. A part of those of a bookie."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from bkpy.config.base import KIB, Seconds, Size
from bkpy.config.recovery import RecoverySettings


class SecuritySettings(RecoverySettings):
    """Who may do what, what TLS costs, and how often its files are looked at."""

    access_file: str | None = Field(
        default=None,
        description="TOML file of rights: lists read, write, administer and bookies of names in certificates. Without "
        "it, whoever has a certificate may read and write everything",
    )
    metrics_tls: bool = Field(
        default=False,
        description="serve the metrics page with TLS as well: to clients with a certificate, and commands to those "
        "with a name that may administer, instead of to those that admin_clients says",
    )
    tls_handshakes_max: Size = Field(
        default=256,
        description="connections that are at their TLS handshake, before which they cost little else; with one more, "
        "the oldest of them is closed",
    )
    tls_handshake_timeout_s: Seconds = Field(
        default=3.0, description="seconds a new connection may take for its TLS handshake"
    )
    tls_buffer_bytes_max: Size = Field(
        default=64 * KIB,
        description="bytes of a connection with TLS that wait to be decrypted while the bookie doesn't read from it, "
        "and that wait to be sent before its client counts as one who doesn't read",
    )
    tls_reload_interval_s: Seconds = Field(
        default=10.0,
        description="seconds between two looks at the files of certificates and of rights; new connections get new "
        "certificates, and all connections new rights",
    )

    @model_validator(mode="after")
    def _serves_with_tls(self) -> Self:
        if self.tls_ca_file is not None and self.tls_certificate_file is None:
            raise ValueError("a bookie with tls_ca_file needs tls_certificate_file and tls_key_file, too")
        if self.metrics_tls and self.tls_certificate_file is None:
            raise ValueError("metrics_tls needs tls_certificate_file, tls_key_file and tls_ca_file")
        if self.access_file is not None and self.tls_certificate_file is None:
            raise ValueError("access_file needs tls_certificate_file: names are known by certificates only")
        return self
