"""What the dashboard's API returns: the models from which its OpenAPI description is made."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


class FindingReport(BaseModel):
    severity: str = Field(description="`note`, `warning` or `risk`")
    code: str
    subject: str = Field(description="a bookie's id, or empty")
    message: str
    help: str = Field(description="the page of the documentation that helps")


class HealthReport(BaseModel):
    """What `bkpy cluster health --json` prints."""

    status: str = Field(description="`healthy`, `warning` or `risk`; `unknown` if nobody can tell")
    bookies: int
    bookies_writable: int
    ledgers_missing_copies: int
    findings: list[FindingReport]


class Rates(BaseModel):
    """What happened in a second, between two looks. A bookie counts each copy of an entry."""

    time: float = Field(description="seconds since the epoch")
    entries_stored: float = Field(description="copies of entries stored, a second")
    bytes_stored: float
    bytes_read: float
    add_p99_ms: float | None = Field(description="of requests to store, at the bookies; null if there were none")


class Overview(BaseModel):
    cluster: str = Field(description="the cluster's instance id")
    error: str = Field(description="why the last look at the cluster failed, or empty")
    looked: float = Field(description="when the last look that succeeded ended, in seconds since the epoch")
    health: HealthReport
    rates: list[Rates] = Field(description="the oldest first")
    actions: list[str] = Field(default=[], description="what this dashboard may do; empty if it only shows")


class BookieState(BaseModel):
    bookie_id: str
    address: str
    rack: str
    region: str
    version: str
    state: str = Field(description="`writable`, `read-only`, `draining`, `limbo` or `absent`")
    why: str = Field(description="why it takes no entries, or empty")
    free_bytes: int
    seen: bool = Field(description="whether its metrics page can be read; what follows is 0 or empty otherwise")
    entries_stored: float = Field(description="entries stored, a second")
    bytes_stored: float
    bytes_read: float
    add_p99_ms: float | None
    memory_bytes: int
    memory_bytes_max: int
    journal_queue_bytes: int = Field(default=0, description="bytes that wait for a journal")
    connections: int
    doing: list[str] = Field(description="`checkpoint`, `compaction`, `scrub`, `rebuild`")
    damages: int


class BookiesReport(BaseModel):
    bookies: list[BookieState]


class BusyLedger(BaseModel):
    """A ledger that is written to. What is appended is about what its bookies store, divided by its write quorum."""

    ledger_id: int
    log: str = Field(description="the named log that it belongs to, or empty")
    entries: float = Field(description="appended, a second")
    bytes: int = Field(description="bytes of entry records, a second")
    bookies: list[str] = Field(description="the ensemble that is written to")


class BusyLog(BaseModel):
    log: str
    entries: float = Field(description="appended, a second")
    bytes: int


class Busiest(BaseModel):
    """The ledgers that bookies with a metrics page store most of, and the logs that these belong to."""

    ledgers: list[BusyLedger] = Field(description="most bytes first: 64 at most")
    logs: list[BusyLog]


class LedgerLine(BaseModel):
    ledger_id: int
    state: str = Field(description="`OPEN`, `IN_RECOVERY`, `CLOSED`, or `unreadable`")
    last_entry: int | None
    length: int | None
    quorums: str = Field(description="ensemble size, write quorum, ack quorum")
    created: str
    fragments: int
    log: str = Field(description="the named log that it belongs to, or empty")
    missing: list[str] = Field(description="bookies that miss copies of its entries, by its under-replication record")


class LedgerPage(BaseModel):
    ledgers: list[LedgerLine]
    after: int | None = Field(description="the argument `after` of the next page; null behind the last one")
    examined: int = Field(description="how many ledgers were looked at to fill this page")


class LedgerDetail(BaseModel):
    """`ledger` is what `bkpy ledger show --json` prints, without the bookies' reports."""

    ledger: dict[str, Any]
    missing: dict[str, str] = Field(description="bookies that miss copies, each with the reason")
    unclosed: bool


class LogLine(BaseModel):
    log: str
    first_position: int | None
    known_end: int | None
    ledgers: int | None
    bytes: int | None
    writer: str | None
    consumers: int | None = None
    lag: int | None = Field(default=None, description="entries of sealed segments that the last consumer has not read")
    appended_entries: float | None = Field(default=None, description="a second; null if it isn't among the busiest")
    appended_bytes: int | None = None


class LogPage(BaseModel):
    logs: list[LogLine]
    after: str | None


class SegmentReport(BaseModel):
    ledger_id: int
    first_position: int
    entries: int | None = Field(description="null while it is being written")
    bytes: int | None
    begun_ms: int
    last_ms: int | None


class Consumer(BaseModel):
    consumer: str
    position: int
    lag: int = Field(description="entries of sealed segments that it has not read")
    since_ms: int


class LogDetail(BaseModel):
    log: str
    first_position: int
    known_end: int
    writer: str | None
    retention_s: float | None
    retention_bytes: int | None
    segments: list[SegmentReport] = Field(description="the newest, the oldest of them first")
    segments_before: int = Field(description="how many older ones there are")
    consumers: list[Consumer]


class Healing(BaseModel):
    """What `bkpy autorecovery status --json` prints."""

    replication: dict[str, Any]


class EventReport(BaseModel):
    number: int = Field(description="ascends by one")
    time: float
    kind: str = Field(description="`bookie`, `ledger`, `healing`, `health`, `action` or `audit`")
    text: str


class Events(BaseModel):
    events: list[EventReport] = Field(description="the newest first")


class AuditReport(BaseModel):
    """An act; who did it is what the acting process said."""

    time_ms: int
    act: str
    subject: str
    details: str
    done: bool = Field(description="certainly; else it was begun, and failed, goes on, or has an unknown outcome")
    user: str
    process: str
    client: str
    identities: list[str]


class AuditPage(BaseModel):
    acts: list[AuditReport] = Field(description="the newest first; some 100 of each kind are kept")


class ActionRequest(BaseModel):
    """What to do to whom; the subject is a bookie's id, or a ledger's for `recover`."""

    subject: str


class ActionDone(BaseModel):
    text: str


class ErrorReport(BaseModel):
    error: str
