"""The settings that bookies and clients share: TLS, authentication at ZooKeeper, and the limits of named logs."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from bkpy.config.base import RELOADABLE, Group, Seconds, Settings, Size, check_user_and_password
from bkpy.config.tuning.shared import MetadataTuning


class ConnectionSecurity(Settings):
    group: ClassVar[Group | None] = "security"

    tls_ca_file: str | None = Field(
        default=None,
        description="PEM file of the CAs that sign the certificates of bookies and clients. It turns on TLS between "
        "them; a bookie needs tls_certificate_file and tls_key_file as well",
    )
    tls_certificate_file: str | None = Field(
        default=None,
        description="PEM file of the certificate of this bookie or client, followed by its chain. A bookie with one "
        "requires TLS and a certificate of every client",
    )
    tls_key_file: str | None = Field(
        default=None,
        description="PEM file of the certificate's private key, not encrypted. Let only the process's account read it",
    )
    zookeeper_tls_ca_file: str | None = Field(
        default=None,
        description="PEM file of the CAs that sign ZooKeeper's certificates. It turns on TLS to ZooKeeper, which "
        "serves TLS on a separate port",
    )
    zookeeper_tls_certificate_file: str | None = Field(
        default=None, description="PEM file of the certificate to present to ZooKeeper, if ZooKeeper asks for one"
    )
    zookeeper_tls_key_file: str | None = Field(default=None, description="PEM file of that certificate's private key")
    zookeeper_auth: SecretStr | None = Field(
        default=None,
        description="USER:PASSWORD for ZooKeeper's digest authentication. It protects the nodes that this bookie or "
        "client creates. There is no flag for it, because other users of the machine see flags",
    )
    zookeeper_auth_file: str | None = Field(
        default=None, description="file that holds USER:PASSWORD in one line, instead of zookeeper_auth"
    )
    zookeeper_acl: Literal["own", "open"] = Field(
        default="own",
        description="access to nodes created with zookeeper_auth: only with that USER:PASSWORD, or open to everybody "
        "while you roll the password out",
    )

    @model_validator(mode="after")
    def _certificates(self) -> Self:
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_certificate_file and tls_key_file are needed together")
        if self.tls_certificate_file is not None and self.tls_ca_file is None:
            raise ValueError("tls_ca_file is needed as well, to verify the other side")
        if (self.zookeeper_tls_certificate_file is None) != (self.zookeeper_tls_key_file is None):
            raise ValueError("zookeeper_tls_certificate_file and zookeeper_tls_key_file are needed together")
        if self.zookeeper_tls_certificate_file is not None and self.zookeeper_tls_ca_file is None:
            raise ValueError("zookeeper_tls_ca_file is needed as well, to verify ZooKeeper")
        if self.zookeeper_auth is not None and self.zookeeper_auth_file is not None:
            raise ValueError("zookeeper_auth and zookeeper_auth_file are the same thing: give one of them")
        return self

    @field_validator("zookeeper_auth")
    @classmethod
    def _user_and_password(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            check_user_and_password(value.get_secret_value())
        return value


class LogLimits(Settings):
    group: ClassVar[Group | None] = "logs"

    log_retention_interval_s: Seconds = Field(
        default=60.0,
        description="seconds between two checks of a log's retention: by its writer, or by the auditor if there is "
        "none",
    )
    log_consumers_max: Size = Field(
        default=1000,
        description="consumers of one log. Each is read at every truncation and may hold back retention. Lowering it "
        "removes none",
    )
    log_producer_idle_s: Seconds = Field(
        default=30 * 24 * 3600.0,
        description="seconds after which a log forgets a producer that has neither appended nor had the log open. It "
        "can't open the log again without saying that it is new. Ids of Spark writers are not forgotten",
    )


class SlowRequestLines(Settings):
    group: ClassVar[Group | None] = "network"

    slow_request_ms: int = Field(
        json_schema_extra=RELOADABLE,
        default=1000,
        ge=0,
        description="milliseconds for one request between client and bookie from which on both log it, with the same "
        "id: see docs/how-to/watching.md; 0 for never",
    )


class MetadataSettings(SlowRequestLines, LogLimits, ConnectionSecurity, MetadataTuning):
    """What every process of a cluster is configured with: its access to the metadata store, TLS and logs."""
