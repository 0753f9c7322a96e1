"""The options of the data source: what each takes, and what is said of one that is wrong."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkpy.client.arguments import format_ledger_ids
from bkpy.config.base import MIB
from bkpy.errors import ConfigError
from bkpy.spark.options import COLUMNS, parse_ledgers, parse_options
from bkpy.spark.sink_options import parse_sink_options

if TYPE_CHECKING:
    from pathlib import Path

URI = "zk://127.0.0.1:2181/ledgers"
REQUIRED = {"metadataServiceUri": URI, "ledgers": "7"}


def test_defaults() -> None:
    options = parse_options(REQUIRED)
    assert options.metadata_uri == URI
    assert options.ledgers == (7,)
    assert options.columns == COLUMNS
    assert (options.starts, options.ends) == ({}, {})
    assert (options.prefetch_depth, options.fetch_bytes, options.partitions_min) == (8, MIB, 1)
    assert options.fail_on_data_loss
    assert not options.pushdown
    assert options.password() == b""


def test_every_option_in_any_case(tmp_path: Path) -> None:
    (tmp_path / "password").write_bytes(b"sesame\r\n")
    options = parse_options(
        {
            "METADATASERVICEURI": URI,
            "Ledgers": "closed",
            "startingoffsets": '{"7": 100}',
            "endingOffsets": '{"7": 100, "8": 1}',
            "columns": "payload, ENTRY_ID",
            "minPartitions": "4",
            "maxBytesPerPartition": "1000",
            "fetchBytes": "1",
            "prefetchDepth": "2",
            "maxBytesPerBatch": "1",
            "metadataRequests": "1",
            "timeoutSeconds": "0.5",
            "sessionTimeoutSeconds": "4",
            "skipUnauthorized": "true",
            "passwordFile": str(tmp_path / "password"),
            "tlsCaFile": "/ca.pem",
            "zookeeperAuthFile": "/auth",
            "failOnDataLoss": "False",
            "pushdown": "true",
        }
    )
    assert options.ledgers is None
    assert (options.starts, options.ends) == ({7: 100}, {7: 100, 8: 1})
    assert options.columns == ("payload", "entry_id")
    assert (options.partitions_min, options.partition_bytes_max) == (4, 1000)
    assert options.client_settings() == {
        "read_bytes": 1,
        "prefetch_depth": 2,
        "scan_by_blocks_after": 0,
        "read_timeout_s": 0.5,
        "metadata_timeout_s": 0.5,
        "metadata_refused_timeout_s": 0.5,
        "session_timeout_s": 4.0,
        "tls_ca_file": "/ca.pem",
        "zookeeper_auth_file": "/auth",
    }
    assert (options.batch_bytes_max, options.metadata_requests, options.skip_unauthorized) == (1, 1, True)
    assert options.password() == b"sesame"
    assert "sesame" not in repr(options)
    assert (options.fail_on_data_loss, options.pushdown) == (False, True)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"ledger": "7"}, ["unknown option ledger", "ledgers"]),
        ({"prefetch": "1"}, ["unknown option prefetch", "prefetchDepth"]),
        ({"metadataServiceUri": "http://x"}, ["http://x", "metadata URI"]),
        ({"ledgers": ""}, ["ledgers", "7,9-12", "closed"]),
        ({"ledgers": "9-7"}, ["9-7", "ends before it begins"]),
        ({"ledgers": "-1"}, ["-1"]),
        ({"ledgers": "9223372036854775808"}, ["at most"]),
        ({"ledgers": "0-99999999"}, ["1000000", "closed"]),
        ({"startingOffsets": "7"}, ["startingOffsets", "JSON"]),
        ({"startingOffsets": '{"x": 1}'}, ["'x' is no ledger id"]),
        ({"endingOffsets": '{"7": true}'}, ["endingOffsets", "True is no entry id"]),
        ({"startingOffsets": '{"7": 9}', "endingOffsets": '{"7": 8}'}, ["entry 8", "start 9", "ledger 7"]),
        ({"columns": "payload,ledgerid"}, ["'ledgerid'", "ledger_id"]),
        ({"columns": "length,length"}, ["twice"]),
        ({"minPartitions": "0"}, ["minPartitions", "from 1 to"]),
        ({"prefetchDepth": "65"}, ["prefetchDepth", "from 1 to 64"]),
        ({"fetchBytes": "1e6"}, ["fetchBytes", "whole number"]),
        ({"timeoutSeconds": "nan"}, ["timeoutSeconds", "more than 0"]),
        ({"failOnDataLoss": "yes"}, ["failOnDataLoss", "true or false"]),
    ],
)
def test_a_wrong_option_is_named(changed: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options({**REQUIRED, **changed})
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("name", list(REQUIRED))
def test_a_missing_option_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"option {name} is missing"):
        parse_options({key: text for key, text in REQUIRED.items() if key != name})


LOG = {"metadataServiceUri": REQUIRED["metadataServiceUri"], "log": "orders"}


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("earliest", "earliest"),
        (" Latest ", "latest"),
        ("7", 7),
        ('{"position": 7}', 7),
        ('{"position": 7, "log_uid": "x"}', 7),
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
    ],
)
def test_where_a_log_is_read_from(text: str, offset: object) -> None:
    assert parse_options({**LOG, "startingOffsets": text}).log_start == offset


def test_an_offset_of_a_checkpoint_names_its_log() -> None:
    offsets = {"startingOffsets": '{"position": 7, "log_uid": "x"}', "endingOffsets": '{"position": 9, "log_uid": "y"}'}
    assert parse_options({**LOG, **offsets}).log_uids == {"x", "y"}
    assert parse_options({**LOG, "startingOffsets": '{"position": 7}'}).log_uids == frozenset()


def test_a_log_has_more_columns() -> None:
    assert parse_options(LOG).columns == (*COLUMNS, "time", "producer", "sequence")
    assert parse_options(REQUIRED).columns == COLUMNS


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"ledgers": "7"}, ["ledgers", "log", "not both"]),
        ({"log": "a/b"}, ["'a/b'", "name of a log"]),
        ({"startingOffsets": "soon"}, ["startingOffsets", "'soon'", "earliest", "2026-"]),
        ({"startingOffsets": "2026-01-31T12:00:00"}, ["zone"]),
        ({"startingOffsets": '{"7": 1}'}, ["position"]),
        ({"startingOffsets": "-1"}, ["position"]),
        ({"startingOffsets": '{"position": 1, "log_uid": 7}'}, ["position"]),
        ({"endingOffsets": "earliest"}, ["no entries"]),
        ({"startingOffsets": "7", "endingOffsets": "6"}, ["ends at position 6", "start 7"]),
        ({"maxEntriesPerTrigger": "1", "maxBytesPerTrigger": "1"}, ["either", "maxBytesPerTrigger"]),
        ({"maxEntriesPerTrigger": "0"}, ["maxEntriesPerTrigger", "from 1"]),
        ({"skipUnauthorized": "true"}, ["skipUnauthorized", "one password"]),
    ],
)
def test_a_wrong_option_of_a_log_is_named(changed: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options({**LOG, **changed})
    assert all(word in str(caught.value) for word in words), caught.value


SINK = {**LOG, "writerId": "job-1"}


def test_options_of_a_write() -> None:
    options = parse_sink_options({**SINK, "BATCHID": "7", "checkpointLocation": "/x", "tlsCaFile": "/ca.pem"})
    assert (options.log, options.writer_id, options.batch) == ("orders", "job-1", 7)
    assert options.client_settings()["tls_ca_file"] == "/ca.pem"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"writerId": ""}, ["writerId", "1 to 255"]),
        ({"writerId": "a b"}, ["writerId", "without blanks"]),
        ({"batchId": "-1"}, ["batchId", "from 0"]),
        ({"columns": "payload"}, ["unknown option columns"]),
    ],
)
def test_a_wrong_option_of_a_write_is_named(changed: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_sink_options({**SINK, **changed})
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("name", list(SINK))
def test_a_missing_option_of_a_write_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"option {name} is missing"):
        parse_sink_options({key: text for key, text in SINK.items() if key != name})


def test_a_password_file_that_is_not_there(tmp_path: Path) -> None:
    options = parse_options({**REQUIRED, "passwordFile": str(tmp_path / "none")})
    with pytest.raises(ConfigError, match="none"):
        options.password()


def test_ledger_ids() -> None:
    assert parse_ledgers(" 9 - 12,7, 10") == (7, 9, 10, 11, 12)
    assert parse_ledgers(" Closed ") is None
    assert format_ledger_ids([12, 7, 9, 10, 11, 7]) == "7,9-12"


@given(st.sets(st.integers(0, 40) | st.integers(0, 2**63 - 1), min_size=1))
def test_what_is_written_is_read(ids: set[int]) -> None:
    assert parse_ledgers(format_ledger_ids(ids)) == tuple(sorted(ids))
