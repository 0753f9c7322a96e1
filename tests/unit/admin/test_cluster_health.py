"""Whether all is well with a cluster: each thing that can be wrong is found, with a page of the docs that helps."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bkpy.admin.bookie_pages import PageReport
from bkpy.admin.cluster_health import (
    CERTIFICATE_DAYS,
    FREE_BYTES_LOW,
    METADATA_SLOW_S,
    SESSION_LOST_S,
    SKEW_S,
    ClusterView,
    Severity,
    assess,
)
from bkpy.metadata.bookies.registration import BookieInfo

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]
NOW_S = 1.8e9
DAY_S = 86400
ABSENT = {"absent_s": 90.0, "replaced": False, "lost": False, "worked_off": False}


def bookie(name: str, **changes: Any) -> BookieInfo:
    return BookieInfo(**({"bookie_id": name, "address": f"{name}:1", "version": "1", "free_bytes": 1 << 40} | changes))


def page(skew_s: float = 0.0, why: str | None = None, **metrics: float | dict[tuple[str, ...], float]) -> PageReport:
    values = {
        f"bkpy_bookie_{name}": value if isinstance(value, dict) else {(): value} for name, value in metrics.items()
    }
    return PageReport(why is None, why, skew_s, values)


REPLICATION: dict[str, Any] = {
    "enabled": True,
    "auditor": {"name": "a", "since_ms": 1},
    "ledgers": 0,
    "ledgers_by_copies_left": {},
    "unreadable": 0,
    "eta_s": 0.0,
    "stuck": 0,
    "stuck_ledgers": {},
    "most_absent": False,
    "absent": {},
    "working": [],
    "checks": {"replicas": {"ended_s": 14 * DAY_S}, "placement": {"ended_s": None}},
}
WELL = ClusterView(
    {name: bookie(name, free_bytes=FREE_BYTES_LOW) for name in "abc"},
    frozenset("abc"),
    frozenset(),
    REPLICATION,
    {
        name: page(
            SKEW_S,
            certificate_end_seconds=NOW_S + CERTIFICATE_DAYS * DAY_S,
            session_lost_seconds=NOW_S + SKEW_S - SESSION_LOST_S,
        )
        for name in "abc"
    },
    METADATA_SLOW_S,
    NOW_S,
)


def replication(**changes: Any) -> Callable[[ClusterView], ClusterView]:
    return lambda seen: dataclasses.replace(seen, replication={**REPLICATION, **changes})


def with_bookie(**changes: Any) -> Callable[[ClusterView], ClusterView]:
    return lambda seen: dataclasses.replace(seen, bookies={**seen.bookies, "b": bookie("b", **changes)})


def with_page(report: PageReport | None) -> Callable[[ClusterView], ClusterView]:
    return lambda seen: dataclasses.replace(seen, pages={**seen.pages, "b": report})


def without_b(seen: ClusterView) -> ClusterView:
    return dataclasses.replace(
        seen,
        bookies={name: info for name, info in seen.bookies.items() if name != "b"},
        pages={name: report for name, report in seen.pages.items() if name != "b"},
    )


def draining(seen: ClusterView) -> ClusterView:
    return with_bookie(read_only=True, read_only_reason="draining")(dataclasses.replace(seen, draining=frozenset("b")))


def none_writable(seen: ClusterView) -> ClusterView:
    readers = {name: bookie(name, read_only=True, read_only_reason="full") for name in "abc"}
    return dataclasses.replace(seen, bookies=readers)


AILMENTS: dict[str, tuple[Callable[[ClusterView], ClusterView], Severity, str, str]] = {
    "unreadable": (replication(ledgers_by_copies_left={"0": 1, "2": 5}), Severity.RISK, "", "1 ledger with"),
    "one-copy": (replication(ledgers_by_copies_left={"1": 2}), Severity.RISK, "", "2 ledgers with"),
    "unreadable-metadata": (replication(unreadable=1), Severity.RISK, "", "unreadable metadata"),
    "missing-copies": (replication(ledgers=3, eta_s=61.0), Severity.WARNING, "", "whole in about 61 s"),
    "stuck": (replication(stuck=9, stuck_ledgers={"7": "nobody"}), Severity.WARNING, "", "9 ledgers stuck: 7: nobody"),
    "most-absent": (replication(most_absent=True), Severity.RISK, "", "most bookies are absent"),
    "re-replication-off": (replication(enabled=False), Severity.WARNING, "", "bkpy autorecovery enable"),
    "no-auditor": (replication(auditor=None), Severity.WARNING, "", "no process is the auditor"),
    "check-late": (
        replication(checks={"placement": {"ended_s": 2 * DAY_S + 1}}),
        Severity.WARNING,
        "",
        "placement ended 2 days",
    ),
    "unreadable-log": (
        lambda seen: dataclasses.replace(seen, unreadable_logs={"orders": "no JSON", "visits": "no JSON"}),
        Severity.RISK,
        "",
        "the lists of 2 logs are unreadable: orders: no JSON; visits: no JSON",
    ),
    "unreadable-cookie": (
        lambda seen: dataclasses.replace(seen, unreadable_cookies={"b": "no JSON"}),
        Severity.WARNING,
        "b",
        "it can't start again: no JSON",
    ),
    "unexamined": (lambda seen: dataclasses.replace(seen, unexamined=7), Severity.NOTE, "", "7 logs and cookies"),
    "absent": (without_b, Severity.WARNING, "b", "isn't registered"),
    "limbo": (with_bookie(in_limbo=True, read_only=True), Severity.WARNING, "b", "lost data"),
    "draining": (draining, Severity.WARNING, "b", "it drains"),
    "read-only": (with_bookie(read_only=True, read_only_reason="no space"), Severity.WARNING, "b", "no space"),
    "space": (with_bookie(free_bytes=FREE_BYTES_LOW - 1), Severity.WARNING, "b", f"{FREE_BYTES_LOW - 1:,} bytes"),
    "versions": (with_bookie(version="2"), Severity.WARNING, "", "2 of 1, 1 of 2"),
    "not-ready": (with_page(page(why="it starts")), Severity.WARNING, "b", "it starts"),
    "damage": (with_page(page(scrub_damages=3)), Severity.WARNING, "b", "3 damages"),
    "collection-refused": (
        with_page(page(gc_runs_total={("older",): 1}, gc_last_run_done=0)),
        Severity.WARNING,
        "b",
        "older than what the bookie has seen",
    ),
    "clock": (with_page(page(-SKEW_S - 1)), Severity.WARNING, "b", "4 s behind"),
    "session-lost": (
        with_page(page(-SKEW_S, session_lost_seconds=NOW_S - SKEW_S - SESSION_LOST_S + 1)),
        Severity.WARNING,
        "b",
        "lost its session with ZooKeeper 599 s ago",
    ),
    "memory": (with_page(page(memory_full=1)), Severity.NOTE, "b", "writers wait"),
    "certificate": (
        with_page(page(certificate_end_seconds=NOW_S + CERTIFICATE_DAYS * DAY_S - 1)),
        Severity.WARNING,
        "b",
        "ends in 7.0 days",
    ),
    "pages": (with_page(None), Severity.NOTE, "", "the pages of b can't be read"),
    "metadata-slow": (
        lambda seen: dataclasses.replace(seen, metadata_s=METADATA_SLOW_S + 0.001),
        Severity.WARNING,
        "",
        "251 ms",
    ),
}


def test_a_cluster_at_all_its_limits_is_healthy() -> None:
    health = assess(WELL)
    assert (health.status, health.worst, health.findings) == ("healthy", Severity.NOTE, ())
    assert (health.bookies, health.writable, health.ledgers_missing_copies) == (3, 3, 0)


def test_what_waits_for_a_bookie_is_not_sent_to_the_page_that_gives_entries_up() -> None:
    (finding,) = assess(AILMENTS["stuck"][0](WELL)).findings
    assert finding.help.endswith("#a-bookie-died")


@pytest.mark.parametrize("code", AILMENTS)
def test_what_is_wrong_is_found_and_nothing_else(code: str) -> None:
    change, severity, subject, message = AILMENTS[code]
    health = assess(change(WELL))
    (finding,) = health.findings
    assert (finding.code, finding.severity, finding.subject) == (code, severity, subject)
    assert message in finding.message
    assert health.worst is severity
    assert health.status == {Severity.NOTE: "healthy", Severity.WARNING: "warning", Severity.RISK: "risk"}[severity]
    assert health.to_json()["findings"][0]["severity"] == severity.name.lower()


def test_without_a_bookie_that_takes_entries_data_is_at_risk() -> None:
    health = assess(none_writable(WELL))
    assert [finding.code for finding in health.findings] == ["none-writable", *["read-only"] * 3]
    assert (health.worst, health.writable) == (Severity.RISK, 0)


def test_an_absent_bookie_is_shown_with_what_the_auditor_knows_of_it() -> None:
    for changes, message in (
        ({}, "absent for 90 s"),
        ({"lost": True}, "lost for 90 s"),
        ({"lost": True, "worked_off": True}, "lost, its ledgers are re-replicated for 90 s"),
    ):
        seen = without_b(replication(absent={"b": ABSENT | changes})(WELL))
        assert [(f.subject, f.message) for f in assess(seen).findings] == [("b", message)]
    forgotten = replication(absent={"d": ABSENT})(WELL)  # it has no cookie any more
    assert [finding.subject for finding in assess(forgotten).findings] == ["d"]


def test_the_worst_comes_first() -> None:
    seen = with_page(None)(replication(ledgers_by_copies_left={"1": 1}, enabled=False, ledgers=1)(WELL))
    codes = [finding.code for finding in assess(seen).findings]
    assert codes == ["one-copy", "missing-copies", "re-replication-off", "pages"]


def test_a_refused_certificate_is_said_to_be() -> None:
    seen = with_page(page(certificate_end_seconds=0.0))(WELL)
    assert [finding.message for finding in assess(seen).findings] == ["its certificate is refused"]


def test_each_page_that_is_named_exists_with_its_heading() -> None:
    helps = {finding.help for change, *_ in AILMENTS.values() for finding in assess(change(WELL)).findings}
    helps |= {finding.help for finding in assess(none_writable(WELL)).findings}
    for place in helps:
        path, _, anchor = place.partition("#")
        headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), re.MULTILINE)
        anchors = {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-").lower() for heading in headings}
        assert not anchor or anchor in anchors, place
