"""What the dashboard makes of two looks at a cluster: rates, latencies, and what has changed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from tests import hooks
from tests.unit.admin.test_cluster_health import REPLICATION, WELL, bookie, page, without_b

from bkpy.admin.bookie_pages import PageReport

if TYPE_CHECKING:
    from bkpy.admin.cluster_health import ClusterView

LATENCY = "request_seconds_bucket"


def changes(before: ClusterView, now: ClusterView) -> list[str]:
    return [text for _, text in hooks.dashboard_changes(before, now)]


def replaced(**fields: Any) -> ClusterView:
    return dataclasses.replace(WELL, **fields)


def of_b(**fields: Any) -> ClusterView:
    return replaced(bookies={**WELL.bookies, "b": bookie("b", free_bytes=1 << 40, **fields)})


def of_page(*, done: int) -> ClusterView:
    report = PageReport(True, None, 0.0, {"bkpy_replication_done_ledgers_total": {(): float(done)}})
    return replaced(pages={**WELL.pages, "b": report})


def test_without_a_change_nothing_is_told() -> None:
    assert changes(WELL, WELL) == []


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        (WELL, without_b(WELL), "bookie b has gone"),
        (without_b(WELL), WELL, "bookie b has come"),
        (of_b(), of_b(read_only=True, read_only_reason="no space"), "bookie b takes no entries: no space"),
        (of_b(read_only=True), of_b(), "bookie b takes entries again"),
        (of_b(), of_b(address="elsewhere:1"), "bookie b has moved from b:1 to elsewhere:1"),
        (of_b(), of_b(version="2"), "bookie b runs version 2, before 1"),
        (WELL, replaced(draining=frozenset("b")), "bookie b drains"),
        (replaced(draining=frozenset("b")), WELL, "bookie b drains no more"),
        (WELL, replaced(known=frozenset("ac")), "bookie b was decommissioned"),
        (WELL, replaced(replication={**REPLICATION, "ledgers": 3}), "3 ledgers miss copies"),
        (replaced(replication={**REPLICATION, "ledgers": 3}), WELL, "all ledgers have all of their copies"),
        (of_page(done=2), of_page(done=5), "workers have done 3 under-replicated ledgers"),
        (WELL, replaced(replication={**REPLICATION, "enabled": False}), "warning: re-replication is off"),
        (replaced(replication={**REPLICATION, "enabled": False}), WELL, "over: re-replication is off"),
        (
            WELL,
            replaced(replication={**REPLICATION, "working": [{"ledger_id": 7, "holder": "a", "for_s": 0.0}]}),
            "a works on ledger 7",
        ),
    ],
)
def test_what_has_changed_is_told(before: ClusterView, now: ClusterView, told: str) -> None:
    assert any(text.startswith(told) for text in changes(before, now)), changes(before, now)


def test_rates_are_those_between_two_looks() -> None:
    before, now = page(add_entries_total=100.0), page(add_entries_total=160.0)
    rate = hooks.dashboard_rate
    assert rate("bkpy_bookie_add_entries_total", before, now, 2.0) == 30.0
    assert rate("bkpy_bookie_add_entries_total", now, before, 2.0) == 0.0  # it was restarted
    assert rate("bkpy_bookie_add_entries_total", None, now, 2.0) == 0.0
    assert rate("bkpy_bookie_add_entries_total", before, now, 0.0) == 0.0


def buckets(fast: int, slow: int) -> Any:
    return page(
        **{
            LATENCY: {
                ("0.001", "add"): fast,
                ("0.5", "add"): fast + slow,
                ("+Inf", "add"): fast + slow,
                ("0.001", "read"): 1000.0,
            }
        }
    )


def test_the_99th_percentile_is_of_what_happened_meanwhile_at_all_bookies() -> None:
    p99 = hooks.dashboard_p99_ms
    assert p99([(buckets(0, 0), buckets(990, 10))]) == 1.0
    assert p99([(buckets(0, 0), buckets(989, 11))]) == 500.0
    assert p99([(buckets(989, 11), buckets(2000, 11)), (buckets(0, 0), buckets(10, 0))]) == 1.0
    assert p99([(buckets(5, 5), buckets(5, 5))]) is None
    assert p99([(None, buckets(5, 5)), (buckets(5, 5), None)]) is None


def test_a_latency_past_all_buckets_is_the_last_bound() -> None:
    before = page(**{LATENCY: {("0.5", "add"): 0.0, ("+Inf", "add"): 0.0}})
    now = page(**{LATENCY: {("0.5", "add"): 1.0, ("+Inf", "add"): 9.0}})
    assert hooks.dashboard_p99_ms([(before, now)]) == 500.0
