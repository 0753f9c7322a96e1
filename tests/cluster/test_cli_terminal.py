"""What strangers have written reaches a terminal escaped: payloads, custom metadata, names, errors."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from tests.command import bkpy, on_terminal, write

if TYPE_CHECKING:
    from bkpy.local import LocalCluster

TITLE = "\x1b]0;pwned\x07"
PAYLOAD = f"{TITLE}a\tb\x9b31m \u202egnp.exe \x7f é".encode() + b" \xff\n"
ESCAPED = "\\x1b]0;pwned\\x07"


@pytest.fixture(scope="module")
def uri(cluster: LocalCluster) -> str:
    return cluster.connect_string


def test_entries_are_escaped_on_a_terminal_and_raw_elsewhere(uri: str) -> None:
    ledger_id = write(uri, PAYLOAD)
    bkpy("log", "create", "escapes", uri=uri)
    bkpy("log", "write", "escapes", uri=uri, stdin=PAYLOAD)
    for words in (("ledger", "read", ledger_id), ("ledger", "tail", ledger_id), ("log", "read", "escapes")):
        assert bkpy(*words, uri=uri).stdout == PAYLOAD
        shown = "\n".join(on_terminal(200, *words, uri=uri))
        assert f"{ESCAPED}a" in shown, words
        assert "\\x9b31m \\u202egnp.exe \\x7f é \\xff" in shown
        assert not {"\x1b]", "\x9b", "\u202e", "\x7f"} & set(shown)
        assert TITLE not in shown
        assert TITLE in "\n".join(on_terminal(200, *words, "--raw", uri=uri))
        as_json = "\n".join(on_terminal(400, *words, "--json", uri=uri))
        assert "base64" in as_json
    bidirectional = write(uri, "\u202e\x9b\n".encode())
    assert '"\\u202e\\u009b"' in "\n".join(on_terminal(200, "ledger", "read", bidirectional, "--json", uri=uri))
    assert "\u202e".encode() in bkpy("ledger", "read", bidirectional, "--json", uri=uri).stdout


def test_custom_metadata_are_escaped(uri: str) -> None:
    ledger_id = int(bkpy("ledger", "create", "--metadata", f"na{TITLE}me=va\x1b[2J\nlue", uri=uri).stdout)
    shown = on_terminal(200, "ledger", "show", ledger_id, uri=uri)
    assert any(f"custom na{ESCAPED}me" in line and "va\\x1b[2J\\nlue" in line for line in shown), shown
    assert "\x1b[2J" not in "\n".join(shown)


def test_an_error_is_escaped(uri: str) -> None:
    done = bkpy("log", "show", f"no{TITLE}log", uri=uri, status=1)
    assert TITLE.encode() not in done.stderr
    assert isinstance(done, subprocess.CompletedProcess)
