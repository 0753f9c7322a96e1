"""What the settings of bookies and of clients have in common: units, types, and those of the metadata store.

Invariants: an unknown name is refused, so is a value of the wrong type or out of its range, and settings never change
after they were checked.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

SECONDS_MAX = 1e9  # thirty years are as good as never; far more could not be counted in milliseconds

Seconds = Annotated[float, Field(gt=0, le=SECONDS_MAX, allow_inf_nan=False)]
SecondsOrZero = Annotated[float, Field(ge=0, le=SECONDS_MAX, allow_inf_nan=False)]
Size = Annotated[int, Field(gt=0)]


class Settings(BaseModel):
    # Strict: a quoted number or a boolean where a count belongs is a mistake, not a spelling. Our errors show the value
    # unless it is a secret; pydantic's own, which a traceback shows behind them, would show all of them.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)

    @classmethod
    def secrets(cls) -> frozenset[str]:
        """The names of settings whose values are shown nowhere."""
        return frozenset(name for name, field in cls.model_fields.items() if "SecretStr" in str(field.annotation))


def encodes(text: str) -> bool:
    """Whether UTF-8 can say it. What is no UTF-8 in an argument or a variable becomes text that UTF-8 can't."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def check_user_and_password(text: str) -> None:
    """`ValueError`, which doesn't repeat it, if this is not USER:PASSWORD."""
    user, colon, password = text.partition(":")
    if not user or not colon or not password:
        raise ValueError("expected USER:PASSWORD")
    if not encodes(text):
        raise ValueError("expected USER:PASSWORD in UTF-8")


class MetadataSettings(Settings):
    """What bookies and clients share: how they deal with the metadata store, and how connections are secured."""

    tls_ca_file: str | None = Field(
        default=None,
        description="PEM file of the CAs that sign the certificates of bookies and clients. A client that has one "
        "speaks TLS with bookies; a bookie needs tls_certificate_file and tls_key_file as well",
    )
    tls_certificate_file: str | None = Field(
        default=None,
        description="PEM file of the own certificate, the chain to the CA after it. A bookie that has one speaks TLS "
        "with all clients, and takes only those with a certificate; a client presents it",
    )
    tls_key_file: str | None = Field(
        default=None, description="PEM file of that certificate's key, not encrypted, and readable by nobody else"
    )

    zookeeper_tls_ca_file: str | None = Field(
        default=None,
        description="PEM file of the CAs that sign ZooKeeper's certificates: with it, connections to ZooKeeper use "
        "TLS, which has a port of its own there",
    )
    zookeeper_tls_certificate_file: str | None = Field(
        default=None, description="PEM file of the certificate for ZooKeeper, where it asks for one"
    )
    zookeeper_tls_key_file: str | None = Field(default=None, description="PEM file of that certificate's key")
    zookeeper_auth: SecretStr | None = Field(
        default=None,
        description="USER:PASSWORD for ZooKeeper: nobody else may read or change what is created with it. By an "
        "argument, a file of settings or a variable, and never by a flag, which others could see",
    )
    zookeeper_auth_file: str | None = Field(
        default=None, description="file with such a USER:PASSWORD in one line, instead of zookeeper_auth"
    )
    zookeeper_acl: Literal["own", "open"] = Field(
        default="own",
        description="who may touch what is created with zookeeper_auth: those who have it, or all, while bookies and "
        "clients are given it one after the other",
    )
    metadata_write_attempts_max: Size = Field(
        default=5,
        description="attempts in a row to write one value of metadata that may lose their connection, before its "
        "outcome is given up as unknown",
    )
    metadata_retry_pause_s: Seconds = Field(
        default=0.2, description="seconds between two attempts at what goes on until the metadata store is back"
    )
    metadata_requests_in_flight_max: Size = Field(
        default=1000,
        description="requests to ZooKeeper that wait for an answer before further ones wait their turn: enough to keep "
        "a server busy, few enough to fail quickly when it goes silent",
    )
    metadata_reconnect_pause_min_s: Seconds = Field(
        default=0.05, description="seconds after the first round in which no ZooKeeper server could be reached"
    )
    metadata_reconnect_pause_max_s: Seconds = Field(
        default=1.0, description="seconds to which that pause grows, so that a server that is back is soon noticed"
    )
    metadata_close_timeout_s: Seconds = Field(
        default=1.0, description="seconds to tell ZooKeeper that a session is over, which otherwise ends by its timeout"
    )
    metadata_reply_bytes_max: int = Field(
        default=64 * MIB,
        ge=MIB,
        description="bytes of the largest answer that is taken for ZooKeeper's; a million nodes' names have 30 MB",
    )

    log_list_bytes_max: int = Field(
        default=768 * KIB,
        gt=0,
        le=1000 * KIB,
        description="bytes of the stored list of one log, some 70 for each of its ledgers: ZooKeeper takes no value of "
        "a megabyte. Where a log grows beyond it, roll its ledgers later, truncate it or set retention",
    )

    log_sinks_max: Size = Field(
        default=1000,
        description="writers of batches that a log remembers, each by an id of its own and the last batch that was "
        "committed; a commit of a further one is refused until an operator removes an id that never comes back",
    )

    log_consumers_max: Size = Field(
        default=1000,
        description="consumers of one named log: each is read whenever the log is truncated, and may hold back its "
        "retention. Those that are there stay when this is lowered",
    )
    log_consumer_reads_at_once: Size = Field(
        default=32, description="consumers of a named log that are read at the same time"
    )

    log_conflicts_max: Size = Field(
        default=20,
        description="writes about a named log, lost one after the other to somebody else's change of it, before that "
        "is an error",
    )

    log_deletes_at_once: Size = Field(
        default=32, description="ledgers of a log that are deleted at the same time, when it is truncated or deleted"
    )
    log_retention_interval_s: Seconds = Field(
        default=60.0,
        description="seconds between two looks at what a named log's retention keeps no longer: by its writer, and by "
        "the auditor where there is none",
    )

    @model_validator(mode="after")
    def _certificates(self) -> Self:
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_certificate_file and tls_key_file are needed together")
        if self.tls_certificate_file is not None and self.tls_ca_file is None:
            raise ValueError("tls_ca_file is needed as well, to know the other side by")
        if (self.zookeeper_tls_certificate_file is None) != (self.zookeeper_tls_key_file is None):
            raise ValueError("zookeeper_tls_certificate_file and zookeeper_tls_key_file are needed together")
        if self.zookeeper_tls_certificate_file is not None and self.zookeeper_tls_ca_file is None:
            raise ValueError("zookeeper_tls_ca_file is needed as well, to know ZooKeeper by")
        if self.zookeeper_auth is not None and self.zookeeper_auth_file is not None:
            raise ValueError("zookeeper_auth and zookeeper_auth_file are the same thing: give one of them")
        return self

    @field_validator("zookeeper_auth")
    @classmethod
    def _user_and_password(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            check_user_and_password(value.get_secret_value())
        return value
