"""Whether all is well with a cluster: what was seen of it, and what follows from that, worst first.

`seen` reads the metadata and the bookies' pages; `assess` is a pure function of that. Invariant: what couldn't be seen
is said, and never counts as well.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from bkpy.admin.metadata_sweep import READS_MAX, MetadataSweep
from bkpy.metadata import paths
from bkpy.metadata.bookies.cookies import list_cookies
from bkpy.metadata.bookies.registration import BookieDirectory
from bkpy.metadata.restore_record import read_restore
from bkpy.protocol.restore.restoring import is_confirmed
from bkpy.replication.overview import overview

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from bkpy.admin.bookie_pages import ClusterPages, PageReport
    from bkpy.config.recovery import RecoverySettings
    from bkpy.metadata.bookies.registration import BookieInfo
    from bkpy.metadata.cluster import Cluster
    from bkpy.protocol.restore.restoring import Restore

FREE_BYTES_LOW: Final = 2 << 30  # twice what a bookie by default needs to take entries again
METADATA_SLOW_S: Final = 0.25
SESSION_LOST_S: Final = 600.0  # for so long a lost session is reported
SKEW_S: Final = 3.0  # the clocks of pages have whole seconds
CERTIFICATE_DAYS: Final = 7
_DAY_S: Final = 86400
_CHECK_LATE_S: Final = {"replicas": 14 * _DAY_S, "placement": 2 * _DAY_S}
_LOOKS: Final = 3  # at the metadata, whose slowest counts
_NAMED_MAX: Final = 5
_IDENTITY, _MESSAGES = "docs/how-to/identity.md", "docs/reference/messages.md"
_HEALING, _DISKS, _METRICS = "docs/how-to/healing.md", "docs/how-to/disks.md", "docs/reference/metrics.md"


class Severity(enum.IntEnum):
    """How bad it is; higher is worse."""

    NOTE = 0  # somebody wants it so, or it couldn't be seen
    WARNING = 1
    RISK = 2  # entries can't be read, or one more failure loses some


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """One thing that isn't well. `subject`: a bookie, or empty; `help`: the page of the docs that says what to do."""

    severity: Severity
    code: str
    subject: str
    message: str
    help: str

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"severity": self.severity.name.lower()}


@dataclass(frozen=True)
class ClusterView:
    """What was seen of a cluster. `known` are the ids of bookies with a cookie; `replication` is that of `overview`."""

    bookies: Mapping[str, BookieInfo]
    known: frozenset[str]
    draining: frozenset[str]
    replication: Mapping[str, Any]
    pages: Mapping[str, PageReport | None]
    metadata_s: float  # the slowest of some reads
    now_s: float  # since the epoch
    restore: Restore | None = None  # that the cluster comes from
    unreadable_logs: Mapping[str, str] = field(default_factory=dict)  # by log, why
    unreadable_cookies: Mapping[str, str] = field(default_factory=dict)  # by bookie, why
    unexamined: int = 0  # logs and cookies that nobody has read


@dataclass(frozen=True)
class ClusterHealth:
    """Findings, worst first. `status`: `healthy`, `warning` or `risk`."""

    findings: tuple[HealthFinding, ...]
    bookies: int
    writable: int
    ledgers_missing_copies: int

    @property
    def worst(self) -> Severity:
        return max((finding.severity for finding in self.findings), default=Severity.NOTE)

    @property
    def status(self) -> str:
        return "healthy" if self.worst is Severity.NOTE else self.worst.name.lower()

    def to_json(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "bookies": self.bookies,
            "bookies_writable": self.writable,
            "ledgers_missing_copies": self.ledgers_missing_copies,
            "findings": [finding.to_json() for finding in self.findings],
        }


async def seen(
    cluster: Cluster,
    settings: RecoverySettings,
    pages: ClusterPages,
    *,
    activity: bool = False,
    sweep: MetadataSweep | None = None,
) -> ClusterView:
    """Look at the cluster; with `activity`, also at which ledgers are stored.

    Without a `sweep`, which a caller with many looks does step by step, reads the lists of all logs and all cookies.
    Raises `MetadataUnavailableError` and what `overview` raises.
    """
    store, root, clock = cluster.store, cluster.root, cluster.store.runtime.clock
    slowest = 0.0
    for _ in range(_LOOKS):
        began = clock.monotonic()
        await store.exists(f"{root}/{paths.INSTANCE_ID}")
        slowest = max(slowest, clock.monotonic() - began)
    if sweep is None:
        sweep = MetadataSweep(cluster, settings)
        await sweep.step(READS_MAX)
    directory = BookieDirectory(store, root, store.runtime)
    await directory.refresh()
    bookies = directory.bookies | directory.read_only
    return ClusterView(
        bookies,
        frozenset(await list_cookies(store, root)),
        directory.draining,
        await overview(cluster, settings),
        await pages.read(bookies.values(), activity=activity),
        slowest,
        clock.time(),
        None if (restored := await read_restore(store, root)) is None else restored.restore,
        sweep.unreadable_logs,
        sweep.unreadable_cookies,
        sweep.unexamined,
    )


def assess(seen: ClusterView) -> ClusterHealth:
    """What isn't well, worst first."""
    findings = [
        *_of_ledgers(seen.replication),
        *_of_metadata(seen),
        *_of_bookies(seen),
        *_of_pages(seen),
        *_of_services(seen),
    ]
    findings.sort(key=lambda finding: (-finding.severity, finding.code, finding.subject))
    return ClusterHealth(
        tuple(findings),
        len(seen.bookies),
        sum(not info.read_only for info in seen.bookies.values()),
        seen.replication["ledgers"],
    )


def _of_ledgers(replication: Mapping[str, Any]) -> Iterator[HealthFinding]:
    left: Mapping[str, int] = replication["ledgers_by_copies_left"]
    died = f"{_HEALING}#a-bookie-died"
    if count := left.get("0", 0):
        yield HealthFinding(
            Severity.RISK, "unreadable", "", f"{_ledgers(count)} with entries of which no bookie here has a copy", died
        )
    if count := left.get("1", 0):
        yield HealthFinding(
            Severity.RISK,
            "one-copy",
            "",
            f"{_ledgers(count)} with entries of which one copy is left: stop nothing",
            died,
        )
    if count := replication["unreadable"]:
        yield HealthFinding(
            Severity.RISK,
            "unreadable-metadata",
            "",
            f"{_ledgers(count)} with unreadable metadata or records",
            f"{_HEALING}#when-nothing-helps",
        )
    if count := replication["ledgers"]:
        eta_s = replication["eta_s"]
        when = "at an unknown time" if eta_s is None else f"in about {eta_s:,.0f} s"
        yield HealthFinding(
            Severity.WARNING, "missing-copies", "", f"{_ledgers(count)} missing copies; whole {when}", died
        )
    if stuck := replication["stuck_ledgers"]:
        some = "; ".join(f"{ledger_id}: {why}" for ledger_id, why in list(stuck.items())[:_NAMED_MAX])
        yield HealthFinding(
            Severity.WARNING,
            "stuck",
            "",
            f"{_ledgers(replication['stuck'])} stuck: {some}",
            died,
        )


def _of_metadata(seen: ClusterView) -> Iterator[HealthFinding]:
    if logs := seen.unreadable_logs:
        some = "; ".join(f"{name}: {why}" for name, why in list(logs.items())[:_NAMED_MAX])
        count = "the list of 1 log is" if len(logs) == 1 else f"the lists of {len(logs):,} logs are"
        yield HealthFinding(Severity.RISK, "unreadable-log", "", f"{count} unreadable: {some}", f"{_MESSAGES}#logs")
    for bookie_id, why in seen.unreadable_cookies.items():
        message = f"its cookie in the metadata is unreadable, so it can't start again: {why}"
        yield HealthFinding(
            Severity.WARNING, "unreadable-cookie", bookie_id, message, f"{_IDENTITY}#what-messages-mean"
        )
    if seen.unexamined:
        message = f"{seen.unexamined:,} logs and cookies weren't examined"
        yield HealthFinding(Severity.NOTE, "unexamined", "", message, f"{_MESSAGES}#logs")


def _of_bookies(seen: ClusterView) -> Iterator[HealthFinding]:
    if not any(not info.read_only for info in seen.bookies.values()):
        yield HealthFinding(
            Severity.RISK, "none-writable", "", "no bookie takes entries", "docs/how-to/first-cluster.md#a-bookie"
        )
    absences = seen.replication["absent"]
    died = f"{_HEALING}#a-bookie-died"
    for bookie_id in sorted((seen.known | absences.keys()) - seen.bookies.keys()):
        absence = absences.get(bookie_id)
        if absence is None:
            message = "it isn't registered"
        else:
            state = "lost" if absence["lost"] else "absent"
            state += ", its ledgers are re-replicated" if absence["worked_off"] else ""
            message = f"{state} for {absence['absent_s']:,.0f} s"
        yield HealthFinding(Severity.WARNING, "absent", bookie_id, message, died)
    for bookie_id, info in sorted(seen.bookies.items()):
        if info.in_limbo and not is_confirmed(seen.restore):
            continue  # all are, which is said once
        if info.in_limbo:
            message = "it has lost data, and copies it back"
            yield HealthFinding(Severity.WARNING, "limbo", bookie_id, message, f"{_DISKS}#replacing-a-disk")
        elif bookie_id in seen.draining:
            message = "it drains, and takes no entries"
            yield HealthFinding(Severity.WARNING, "draining", bookie_id, message, f"{_HEALING}#retire-a-machine")
        elif info.read_only:
            why = info.read_only_reason or "it says no reason"
            yield HealthFinding(
                Severity.WARNING, "read-only", bookie_id, f"it takes no entries: {why}", f"{_DISKS}#space"
            )
        elif info.free_bytes < FREE_BYTES_LOW:
            message = f"it has {info.free_bytes:,} bytes of space left"
            yield HealthFinding(Severity.WARNING, "space", bookie_id, message, f"{_DISKS}#space")
    versions = Counter(info.version for info in seen.bookies.values())
    if len(versions) > 1:
        some = ", ".join(f"{count} of {version or 'an unknown version'}" for version, count in sorted(versions.items()))
        yield HealthFinding(
            Severity.WARNING, "versions", "", f"bookies differ in version: {some}", "docs/how-to/upgrades.md"
        )


def _of_pages(seen: ClusterView) -> Iterator[HealthFinding]:
    alarms = f"{_METRICS}#alarms"
    for bookie_id, page in sorted(seen.pages.items()):
        if page is None:
            continue
        if not page.ready and not seen.bookies[bookie_id].read_only:
            yield HealthFinding(Severity.WARNING, "not-ready", bookie_id, f"it isn't ready: {page.why}", alarms)
        if damages := page.value("bkpy_bookie_scrub_damages"):
            message = f"{damages:.0f} damages on its disks"
            yield HealthFinding(Severity.WARNING, "damage", bookie_id, message, f"{_DISKS}#damage")
        if page.value("bkpy_bookie_gc_runs_total", "older") and not page.value("bkpy_bookie_gc_last_run_done"):
            message = "it collects nothing: ZooKeeper is older than what the bookie has seen"
            where = f"{_DISKS}#before-zookeeper-goes-back-to-an-older-state"
            yield HealthFinding(Severity.WARNING, "collection-refused", bookie_id, message, where)
        if abs(page.skew_s) > SKEW_S:
            message = (
                f"its clock is {abs(page.skew_s):.0f} s {'ahead of' if page.skew_s > 0 else 'behind'} this machine's"
            )
            yield HealthFinding(Severity.WARNING, "clock", bookie_id, message, alarms)
        lost_s = page.value("bkpy_bookie_session_lost_seconds")
        if lost_s and (ago_s := seen.now_s + page.skew_s - lost_s) < SESSION_LOST_S:
            message = f"it lost its session with ZooKeeper {max(0.0, ago_s):,.0f} s ago: it hung, or was cut off"
            yield HealthFinding(Severity.WARNING, "session-lost", bookie_id, message, alarms)
        if page.value("bkpy_bookie_memory_full"):
            yield HealthFinding(Severity.NOTE, "memory", bookie_id, "writers wait for its disk or memory", alarms)
        yield from _of_certificate(bookie_id, page, seen.now_s)
    unseen = sorted(bookie_id for bookie_id, page in seen.pages.items() if page is None)
    if unseen:
        message = f"the pages of {_some(unseen)} can't be read from here: disks, clocks and certificates weren't seen"
        yield HealthFinding(Severity.NOTE, "pages", "", message, _METRICS)


def _of_certificate(bookie_id: str, page: PageReport, now_s: float) -> Iterator[HealthFinding]:
    if "bkpy_bookie_certificate_end_seconds" not in page.metrics:
        return
    left_s = page.value("bkpy_bookie_certificate_end_seconds") - now_s
    if left_s < CERTIFICATE_DAYS * _DAY_S:
        message = f"its certificate ends in {left_s / _DAY_S:.1f} days" if left_s > 0 else "its certificate is refused"
        where = "docs/how-to/security.md#tls-between-clients-and-bookies"
        yield HealthFinding(Severity.WARNING, "certificate", bookie_id, message, where)


def _of_services(seen: ClusterView) -> Iterator[HealthFinding]:
    replication = seen.replication
    if not is_confirmed(seen.restore):
        message = "it was restored from a backup, which isn't confirmed: nothing is written, collected or re-replicated"
        yield HealthFinding(Severity.RISK, "restore-unconfirmed", "", message, "docs/how-to/backup.md#restore")
        return  # the others follow from it
    if replication["most_absent"]:
        message = "most bookies are absent, so nothing is re-replicated until more are back"
        yield HealthFinding(Severity.RISK, "most-absent", "", message, f"{_METRICS}#alarms")
    if not replication["enabled"]:
        message = "re-replication is off: bkpy autorecovery enable"
        yield HealthFinding(Severity.WARNING, "re-replication-off", "", message, _HEALING)
    if replication["auditor"] is None:
        message = "no process is the auditor, so nobody finds ledgers that miss copies"
        yield HealthFinding(Severity.WARNING, "no-auditor", "", message, f"{_METRICS}#alarms")
    for name, check in replication["checks"].items():
        if check["ended_s"] is not None and check["ended_s"] > _CHECK_LATE_S.get(name, float("inf")):
            message = f"the check of {name} ended {check['ended_s'] / _DAY_S:.0f} days ago"
            yield HealthFinding(Severity.WARNING, "check-late", "", message, f"{_HEALING}#checks")
    if seen.metadata_s > METADATA_SLOW_S:
        message = f"ZooKeeper answers a read in {seen.metadata_s * 1000:,.0f} ms"
        yield HealthFinding(Severity.WARNING, "metadata-slow", "", message, f"{_METRICS}#alarms")


def _ledgers(count: int) -> str:
    return f"{count:,} ledger" if count == 1 else f"{count:,} ledgers"


def _some(names: Iterable[str]) -> str:
    those = list(names)
    return ", ".join(those[:_NAMED_MAX]) + (f" and {len(those) - _NAMED_MAX} more" if len(those) > _NAMED_MAX else "")
