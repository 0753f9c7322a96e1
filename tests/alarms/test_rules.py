"""Every alarm by `promtool`: what makes it fire, and what is nearly that and doesn't."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import yaml

from .prometheus import RULES, require, rules

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.prometheus, pytest.mark.exhaustive]


class Case(NamedTuple):
    """Series as promtool writes them, one value an interval: of those in `fires` the alarm fires at `at`."""

    fires: dict[str, str]
    quiet: dict[str, str]
    at: str
    labels: dict[str, str] = {}  # noqa: RUF012 - of the alarm, besides its severity
    interval: str = "1m"


B1 = '{instance="b1"}'
OF_B1 = {"instance": "b1"}
_SYNC = "bkpy_bookie_journal_sync_seconds_bucket"


def syncs(slow: int) -> dict[str, str]:
    """A hundred syncs a minute, of which so many take between 100 and 250 ms."""
    counts = {"0.1": 100 - slow, "0.25": 100, "+Inf": 100}
    return {f'{_SYNC}{{instance="b1",le="{le}"}}': f"0+{count}x30" for le, count in counts.items()}


CASES = {
    "BkpyBookieDoesntAnswer": Case(
        {'up{job="bookies",instance="b1"}': "1 0x20"},
        {'up{job="bookies",instance="b1"}': "1 0x3 1x20", 'up{job="other",instance="b1"}': "0x20"},
        "10m",
        {"job": "bookies", **OF_B1},
    ),
    "BkpyEntriesCantBeRead": Case(
        {'bkpy_replication_ledgers{copies_left="0",instance="b1"}': "0 1x20"},
        {'bkpy_replication_ledgers{copies_left="1",instance="b1"}': "0 1x20"},
        "5m",
    ),
    "BkpyOneMoreFailureLosesEntries": Case(
        {'bkpy_replication_ledgers{copies_left="1",instance="b1"}': "1x20"},
        {'bkpy_replication_ledgers{copies_left="2",instance="b1"}': "1x20"},
        "6m",
    ),
    "BkpyCopiesAreNotMade": Case(
        {f"bkpy_replication_oldest_mark_age_seconds{B1}": "3601x5"},
        {f"bkpy_replication_oldest_mark_age_seconds{B1}": "3600x5"},
        "3m",
    ),
    "BkpyLedgersAreStuck": Case(
        {f"bkpy_replication_stuck{B1}": "1x30"}, {f"bkpy_replication_stuck{B1}": "1x10 0x20"}, "20m"
    ),
    "BkpyWorkerReplacesItsTasks": Case(
        {f"bkpy_replication_replaced_tasks_total{B1}": "0x5 1x20"},
        {f"bkpy_replication_replaced_tasks_total{B1}": "7x30"},
        "10m",
        OF_B1,
    ),
    "BkpyReReplicationWasLeftOff": Case(
        {f"bkpy_replication_enabled{B1}": "0x90"}, {f"bkpy_replication_enabled{B1}": "0x50 1x40"}, "70m"
    ),
    "BkpyNobodyIsTheAuditor": Case(
        {f"bkpy_auditor_leading{B1}": "0x20"},
        {f"bkpy_auditor_leading{B1}": "0x20", 'bkpy_auditor_leading{instance="b2"}': "1x20"},
        "10m",
    ),
    "BkpyMostBookiesAreAbsent": Case(
        {f"bkpy_auditor_suspended{B1}": "1x5"}, {f"bkpy_auditor_suspended{B1}": "0x5"}, "3m"
    ),
    "BkpyBookieIsLost": Case(
        {'bkpy_auditor_bookies{state="lost"}': "1x90"}, {'bkpy_auditor_bookies{state="absent"}': "1x90"}, "70m"
    ),
    "BkpyCheckOfReplicasIsLate": Case(
        {'bkpy_check_last_end_timestamp_seconds{check="replicas"}': "0x400"},
        {'bkpy_check_last_end_timestamp_seconds{check="replicas"}': "0x100 360000x300"},
        "340h",
        interval="1h",
    ),
    "BkpyCheckOfPlacementIsLate": Case(
        {'bkpy_check_last_end_timestamp_seconds{check="placement"}': "0x400"},
        {'bkpy_check_last_end_timestamp_seconds{check="placement"}': "0x20 72000x40"},
        "50h",
        interval="1h",
    ),
    "BkpyCopiesWereMissing": Case(
        {'bkpy_check_marked_total{check="replicas",instance="b1"}': "0x5 2x20"},
        {'bkpy_check_marked_total{check="placement",instance="b1"}': "0x5 2x20"},
        "10m",
        {"check": "replicas", **OF_B1},
    ),
    "BkpyDiskRots": Case(
        {f"bkpy_bookie_scrub_damages{B1}": "1x5"}, {f"bkpy_bookie_damage_total{B1}": "3x5"}, "3m", OF_B1
    ),
    "BkpyEntriesUnderAnotherKey": Case(
        {'bkpy_bookie_key_disputes_total{outcome="entries",instance="b1"}': "0x5 1x20"},
        {'bkpy_bookie_key_disputes_total{outcome="refused",instance="b1"}': "0x5 1x20"},
        "10m",
        {"outcome": "entries", **OF_B1},
    ),
    "BkpyBookieTakesNoEntries": Case(
        {f"bkpy_bookie_read_only{B1}": "1x30"}, {f"bkpy_bookie_read_only{B1}": "1x10 0x20"}, "20m", OF_B1
    ),
    "BkpySpaceIsntGivenBack": Case(
        {f"bkpy_bookie_gc_last_run_done{B1}": "0x300"},
        {f"bkpy_bookie_gc_last_run_done{B1}": "0x100 1 0x200"},
        "200m",
        OF_B1,
    ),
    "BkpyJournalsDiskIsSlow": Case(syncs(2), syncs(0), "25m", OF_B1),
    "BkpyBookieDoesntGetBackWhatItLost": Case(
        {f"bkpy_integrity_left{B1}": "2x90"}, {f"bkpy_integrity_left{B1}": "2x50 0x40"}, "70m", OF_B1
    ),
    "BkpyCertificateEndsSoon": Case(
        {f"bkpy_bookie_certificate_end_seconds{B1}": "604900x5"},
        {f"bkpy_bookie_certificate_end_seconds{B1}": "605200x5"},
        "3m",
        OF_B1,
    ),
    "BkpyClientsAreRefused": Case(
        {'bkpy_bookie_tls_failures_total{reason="expired",instance="b1"}': "0x5 1x20"},
        {'bkpy_bookie_tls_failures_total{reason="closed",instance="b1"}': "0x5 1x20"},
        "10m",
        {"reason": "expired", **OF_B1},
    ),
    "BkpyBookieIsTooSmall": Case(
        {f"bkpy_bookie_memory_full{B1}": "1x20"},
        {f"bkpy_bookie_memory_full{B1}": "0 1 0 0 1 0 0 1 0 0 1 0x10"},
        "12m",
        OF_B1,
    ),
    "BkpyConsumerIsBehind": Case(
        {'bkpy_client_consumer_lag_seconds{log="orders",consumer="mail",instance="x"}': "4000x30"},
        {'bkpy_client_consumer_lag_seconds{log="orders",consumer="mail",instance="x"}': "4000x5 0x30"},
        "20m",
        {"log": "orders", "consumer": "mail"},
    ),
}


def test_the_rules_are_valid_and_each_has_a_case() -> None:
    require()
    assert CASES.keys() == {rule["alert"] for rule in rules()}
    done = subprocess.run(["promtool", "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("interval", ["1m", "1h"])  # what takes weeks is evaluated once an hour
def test_each_alarm_fires_for_what_it_is_about_and_for_nothing_that_is_nearly_that(
    tmp_path: Path, interval: str
) -> None:
    require()
    cases = {rule["alert"]: rule for rule in rules() if CASES[rule["alert"]].interval == interval}
    tests = [test for name, rule in cases.items() for test in _tests(rule, CASES[name])]
    file = tmp_path / "cases.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": interval, "tests": tests}))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_understands_each_expression_of_the_dashboard(tmp_path: Path) -> None:
    require()
    board = json.loads((RULES.parent / "grafana" / "bkpy.json").read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    assert len(found) > 50
    records = [
        {"record": f"dashboard:n{number}", "expr": text.replace("$__rate_interval", "5m").replace("$bookie", ".*")}
        for number, text in enumerate(found)
    ]
    file = tmp_path / "dashboard.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": records}]}))
    done = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _tests(rule: dict[str, Any], case: Case) -> list[dict[str, Any]]:
    expected = [{"exp_labels": {**rule["labels"], **case.labels}, "exp_annotations": rule["annotations"]}]
    return [
        {
            "interval": case.interval,
            "input_series": [{"series": series, "values": values} for series, values in given.items()],
            "alert_rule_test": [{"eval_time": case.at, "alertname": rule["alert"], "exp_alerts": alerts}],
        }
        for given, alerts in ((case.fires, expected), (case.quiet, []))
    ]
