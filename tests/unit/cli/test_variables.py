"""Settings of a command's client from variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bkpy.cli.connecting import set_client_settings, settings
from bkpy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield
    monkeypatch.undo()
    set_client_settings({})


def test_a_variable_sets_what_no_argument_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BKPY_READ_TIMEOUT_S", "2.5")
    monkeypatch.setenv("BKPY_PREFETCH_DEPTH", "7")
    monkeypatch.setenv("BKPY_CONNECT", "zk://127.0.0.1/x")
    monkeypatch.setenv("BKPY_BLOCK_BYTES", "no number: a bookie's alone")
    for name, text in (("SERVICE_HOST", "10.0.0.2"), ("SERVICE_PORT", "3181"), ("PORT", "tcp://10.0.0.2:3181")):
        monkeypatch.setenv(f"BKPY_BOOKIES_{name}", text)
        monkeypatch.setenv(f"BKPY_{name}", text)
    monkeypatch.setenv("BKPY_BOOKIES_PORT_3181_TCP_ADDR", "10.0.0.2")
    monkeypatch.setenv("BKPY_PORT_2181_TCP", "tcp://10.0.0.1:2181")  # of Kubernetes, for a service of that name
    set_client_settings({"prefetch_depth": 3})
    assert (settings().read_timeout_s, settings().prefetch_depth) == (2.5, 3)


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("BKPY_READ_TIMEOUT_S", "abc", "variable BKPY_READ_TIMEOUT_S: read_timeout_s must be a number, not 'abc'"),
        ("BKPY_READ_TIMEOUT_S", "-1", "variable BKPY_READ_TIMEOUT_S: read_timeout_s = -1.0: .*greater than 0"),
        ("BKPY_READ_TIMEUOT_S", "1", "unknown setting BKPY_READ_TIMEUOT_S; .* BKPY_READ_TIMEOUT_S"),
        ("BKPY_JORNAL_DIRECTORIES", "/j", "unknown setting BKPY_JORNAL_DIRECTORIES; .* BKPY_JOURNAL_DIRECTORIES"),
        ("BKPY_ZOOKEEPER_AUTH", "secret", r"variable BKPY_ZOOKEEPER_AUTH: zookeeper_auth = \.\.\."),
    ],
)
def test_a_variable_that_says_nothing_of_use_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, expected: str
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(ConfigError, match=expected):
        set_client_settings({})
