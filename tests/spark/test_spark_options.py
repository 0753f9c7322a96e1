"""The options of the data source: what each takes, and what is said of one that is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkpy.config.base import MIB
from bkpy.errors import ConfigError
from bkpy.spark.options import COLUMNS, format_ledgers, parse_ledgers, parse_options

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


def test_a_password_file_that_is_not_there(tmp_path: Path) -> None:
    options = parse_options({**REQUIRED, "passwordFile": str(tmp_path / "none")})
    with pytest.raises(ConfigError, match="none"):
        options.password()


def test_ledger_ids() -> None:
    assert parse_ledgers(" 9 - 12,7, 10") == (7, 9, 10, 11, 12)
    assert parse_ledgers(" Closed ") is None
    assert format_ledgers([12, 7, 9, 10, 11, 7]) == "7,9-12"


@given(st.sets(st.integers(0, 40) | st.integers(0, 2**63 - 1), min_size=1))
def test_what_is_written_is_read(ids: set[int]) -> None:
    assert parse_ledgers(format_ledgers(ids)) == tuple(sorted(ids))
