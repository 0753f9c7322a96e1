"""A log for people and programs: where it begins and ends, its writer, its ledgers and its consumers.

The ledger key is left out, since it gives access to the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from bkpy.cli.connecting import connect_admin
from bkpy.cli.output.tables import print_table
from bkpy.cli.output.text import human_bytes, say
from bkpy.metadata.logs.maintenance import LOG_UID

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bkpy.admin.client import AdminClient
    from bkpy.log.consumer import ConsumerStatus
    from bkpy.metadata.logs.consumers import ConsumerState
    from bkpy.protocol.log.log_list import LogList, Segment
    from bkpy.protocol.log.log_producers import Producers


SUMMARY = ("log", "first_position", "known_end", "ledgers", "bytes", "consumers", "lag", "writer")


async def described(uri: str, name: str, password: bytes, *, whole: bool) -> dict[str, Any]:
    """What is known, for JSON. Fields that need a password are null without it.

    Of a log with pages the ledgers in them are left out, unless `whole`.
    """
    import bkpy

    async with connect_admin(uri) as admin:
        next_position = None
        statuses: list[ConsumerStatus] = []
        try:
            async with await admin.client.read_log(name, password=password) as reader:
                next_position = reader.next_position
                statuses = await reader.consumers()
        except (bkpy.UnauthorizedError, bkpy.BookieUnavailableError):
            if password:
                raise
        log_list, writer = await admin.describe_log(name)
        if not log_list.open_segments:
            next_position = max(log_list.sealed_end, log_list.first_position)
        segments: Sequence[Segment] = log_list.segments
        if whole and log_list.pages:
            segments = [segment async for segment in admin.log_segments(name)]
        return {
            **_summary(name, log_list, writer),
            "next_position": next_position,
            "ensemble_size": log_list.ensemble_size,
            "write_quorum": log_list.write_quorum,
            "ack_quorum": log_list.ack_quorum,
            "digest": log_list.digest,
            "created": iso(log_list.created_ms),
            "retention_s": log_list.retention_s,
            "retention_bytes": log_list.retention_bytes,
            "consumer_lag_max_s": log_list.consumer_lag_max_s,
            "consumer_expiry_s": log_list.consumer_expiry_s,
            "sinks": log_list.producers.batches,
            "gaps": [list(gap) for gap in log_list.gaps],
            "segments": [_segment(segment) for segment in segments],
            "older_ledgers": 0 if whole else log_list.ledgers - len(log_list.segments),
            "to_be_deleted": list(log_list.pending_delete),
            "consumers": consumer_rows(await admin.log_consumers(name), statuses),
        }


@dataclass(frozen=True)
class Wanted:
    """Which logs a list is to have; None and False want all.

    `since`: created since then, in seconds of the epoch; `written`: whether a client has it open for writing; `behind`:
    a consumer has yet to read what the metadata know; `bookie`: its ledgers name this bookie; `missing_copies`: one of
    its ledgers has an under-replication record.
    """

    since: float | None = None
    written: bool | None = None
    behind: bool = False
    bookie: str | None = None
    missing_copies: bool = False

    def wants(self, log_list: LogList, row: Mapping[str, Any]) -> bool:
        """As far as the log's own metadata decide."""
        return (
            (self.since is None or log_list.created_ms >= self.since * 1000)
            and (self.written is None or self.written == (row["writer"] is not None))
            and (not self.behind or bool(row["lag"]))
        )

    async def uids(self, admin: AdminClient) -> set[str] | None:
        """The uids of the logs whose ledgers are as wanted; None if all are."""
        if self.bookie is None and not self.missing_copies:
            return None
        found = admin.find_ledgers(bookie=self.bookie, missing_copies=self.missing_copies)
        return {one.custom_metadata.get(LOG_UID, b"").decode(errors="replace") async for one in found}


async def listed(uri: str, wanted: Wanted) -> list[dict[str, Any]]:
    """Of each log that is wanted, the fields that a line of a list shows. An unreadable one is among them."""
    import bkpy
    from bkpy.errors import UnsupportedVersionError

    async with connect_admin(uri) as admin:
        found = []
        uids = await wanted.uids(admin)
        async for name in admin.client.list_logs():
            try:
                log_list, writer = await admin.describe_log(name, fresh=False)
                consumers = await admin.log_consumers(name)
                row = _summary(name, log_list, writer) | _behind(log_list, consumers) | {"writer": writer}
                if (uids is None or log_list.uid in uids) and wanted.wants(log_list, row):
                    found.append(row)
            except bkpy.NoSuchLogError:  # deleted meanwhile
                continue
            except (bkpy.CorruptDataError, bkpy.UnauthorizedError, UnsupportedVersionError) as error:
                say(f"bkpy: failed to read log {name}: {error}")
                found.append(dict.fromkeys(SUMMARY, None) | {"log": name})
        return found


def _behind(log_list: LogList, consumers: Mapping[str, ConsumerState]) -> dict[str, int | None]:
    """How many consumers there are, and how far the last of them is behind what the metadata know."""
    end = max(log_list.sealed_end, log_list.first_position)
    lags = [max(0, end - max(state.position, log_list.first_position)) for state in consumers.values()]
    return {"consumers": len(lags), "lag": max(lags, default=None)}


def _summary(name: str, log_list: LogList, writer: str | None) -> dict[str, Any]:
    return {
        "log": name,
        "first_position": log_list.first_position,
        "known_end": max(log_list.sealed_end, log_list.first_position),
        "ledgers": log_list.ledgers,
        "bytes": log_list.payload_bytes,
        "writer": writer,
    }


def _segment(segment: Segment) -> dict[str, Any]:
    return {
        "ledger_id": segment.ledger_id,
        "first_position": segment.first_position,
        "entries": segment.entries if segment.sealed else None,
        "bytes": segment.payload_bytes if segment.sealed else None,
        "begun": iso(segment.begun_ms),
        "last": iso(segment.last_ms) if segment.sealed else None,
    }


async def consumers_listed(admin: AdminClient, name: str, password: bytes) -> list[dict[str, Any]]:
    """The log's consumers; without the password, or too many bookies, nobody knows what they have yet to read."""
    import bkpy

    statuses: list[ConsumerStatus] = []
    try:
        async with await admin.client.read_log(name, password=password) as reader:
            statuses = await reader.consumers()
    except (bkpy.UnauthorizedError, bkpy.BookieUnavailableError):
        if password:
            raise
    return consumer_rows(await admin.log_consumers(name), statuses)


def consumer_rows(states: Mapping[str, ConsumerState], statuses: Sequence[ConsumerStatus]) -> list[dict[str, Any]]:
    """Each consumer, with the next position that it has to read, and the time when it committed that.

    What it has yet to read is null where `statuses` don't say it.
    """
    known = {status.name: status for status in statuses}
    rows = []
    for name, state in sorted(states.items()):
        status = known.get(name)
        rows.append(
            {
                "consumer": name,
                "position": state.position,
                "since": iso(state.since_ms),
                "lag_entries": status and status.lag.entries,
                "lag_bytes": status and status.lag.bytes,
                "lag_s": status and round(status.lag.seconds, 3),
                "idle_s": status and round(status.idle_s, 3),
                "holder": str(status.holder) if status and status.holder else None,
            }
        )
    return rows


def print_consumers(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints what `consumer_rows` returns as a table."""
    print_table(
        ("consumer", "position", "since", "entries to read", "bytes", "oldest s", "idle s", "leased to"),
        [
            (
                row["consumer"],
                row["position"],
                row["since"],
                *(
                    "?" if row[key] is None else f"{row[key]:.0f}"
                    for key in ("lag_entries", "lag_bytes", "lag_s", "idle_s")
                ),
                row["holder"] or "",
            )
            for row in rows
        ],
    )


def producer_rows(producers: Producers) -> list[dict[str, Any]]:
    """Each producer of numbered entries, with the last number in a sealed ledger and its position, and when it was
    active.
    """
    rows = []
    for name in sorted(producers.known):
        if (one := producers.numbered(name)) is not None:
            last = one.last_sequence
            row = {"producer": name, "last_sequence": last, "last_position": one.position_of(last)}
            rows.append({**row, "active": iso(one.active_ms)})
    return rows


def iso(ms: int) -> str:
    """Milliseconds since the epoch, for people and programs."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def show(log: dict[str, Any]) -> None:
    """Prints what `described` has found, as tables."""
    rows: list[tuple[str, object]] = [
        ("log", log["log"]),
        ("first position", log["first_position"]),
        ("next position", "unknown without the password" if log["next_position"] is None else log["next_position"]),
        ("writer", log["writer"] or "nobody"),
        ("E,Qw,Qa", f"{log['ensemble_size']},{log['write_quorum']},{log['ack_quorum']}"),
        ("digest", log["digest"]),
        ("created", log["created"]),
        ("kept", _kept(log)),
    ]
    if log["to_be_deleted"]:
        rows.append(("being deleted", f"{len(log['to_be_deleted'])} ledgers"))
    if log["older_ledgers"]:
        rows.append(("older ledgers", f"{log['older_ledgers']}, shown with --all"))
    print_table(("", ""), [(name, str(value)) for name, value in rows])
    click.echo()
    columns = ("ledger", "first position", "entries", "bytes", "begun", "last entry")
    keys = ("ledger_id", "first_position", "entries", "bytes", "begun", "last")
    print_table(columns, [[segment[key] for key in keys] for segment in log["segments"]])
    if log["gaps"]:
        click.echo()
        print_table(("given up from", "up to"), [(begin, end - 1) for begin, end in log["gaps"]])
    if log["consumers"]:
        click.echo()
        print_consumers(log["consumers"])


def _kept(log: dict[str, Any]) -> str:
    parts = []
    if log["retention_s"] is not None:
        parts.append(f"entries no older than {log['retention_s']:g} s")
    if log["retention_bytes"] is not None:
        parts.append(f"the last {human_bytes(log['retention_bytes'])}")
    if not parts:
        return "everything"
    lag = log["consumer_lag_max_s"]
    held = "" if lag is None else f", at most {lag:g} s longer"
    if (expiry := log["consumer_expiry_s"]) is not None:
        held += f", and not for one that is idle for {expiry:g} s"
    return f"{', and '.join(parts)}; longer what consumers have yet to read{held}"
