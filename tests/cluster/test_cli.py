"""The commands on a running cluster: ledgers, bookies, the cluster itself."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from tests.command import COMMAND, PATIENCE_S, PRELOADED, as_json, bkpy, environment, start, write

import bkpy as bkpy_library
from bkpy.cli import completion
from bkpy.cli.several import show_each
from bkpy.errors import MetadataUnavailableError
from bkpy.local.process import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from bkpy.local import LocalBookie, LocalCluster
    from bkpy.local.zookeeper import ZooKeeperServer


@pytest.fixture(scope="module")
def uri(cluster: LocalCluster) -> str:
    return cluster.connect_string


# --- without a cluster ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "group",
    [
        [],
        ["ledger"],
        ["bookie"],
        ["bookies"],
        ["cluster"],
        ["local"],
        ["bookie", "run"],
        ["bookie", "cookie"],
        ["inspect"],
    ],
)
def test_help(group: list[str]) -> None:
    shown = bkpy(*group, "--help")
    assert shown.stdout.startswith(b"Usage: bkpy")
    assert shown.stderr == b""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ledgr"], ["'ledgr'", "'ledger'"]),
        (["ledger", "log_list"], ["'log_list'"]),
        (["ledger", "list"], ["--connect", "BKPY_CONNECT"]),
        (["ledger", "read", "x", "--connect", "zk://h:1/l"], ["LEDGER", "'x'"]),
        (["ledger", "write", "--ensemble", "3,2", "--connect", "zk://h:1/l"], ["--ensemble", "three numbers"]),
        (["ledger", "create", "--metadata", "x", "--connect", "zk://h:1/l"], ["--metadata", "KEY=VALUE", "'x'"]),
        (["bookie", "run", "--journal_directory", "x"], ["--journal_directory", "--journal_directories"]),
        (["cluster", "init", "--layout", "round", "--connect", "zk://h:1/l"], ["--layout", "hierarchical"]),
        (["--set"], ["'--set' requires an argument (see bkpy --help)"]),
        (["bookie", "run", "--listen"], ["'--listen' requires an argument (see bkpy bookie run --help)"]),
        (["ledger", "show", "1", "--connect"], ["'--connect' requires an argument (see bkpy ledger show --help)"]),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(arguments: list[str], words: list[str]) -> None:
    message = bkpy(*arguments, status=2).stderr.decode()
    assert all(word in message for word in words), message
    assert "--help" in message


def test_bookie_run_names_a_bad_setting_and_its_place(tmp_path: Path) -> None:
    config = tmp_path / "bookie.toml"
    config.write_text('lissten = "127.0.0.1:3181"\n')
    message = bkpy("bookie", "run", "--config", config, status=1).stderr.decode()
    assert f"file {config}: unknown setting lissten; the nearest valid one is listen" in message
    assert "metadata_uri is missing" in bkpy("bookie", "run", status=1).stderr.decode()
    assert "flag: block_bytes must be" in bkpy("bookie", "run", "--block-bytes", "x", status=1).stderr.decode()


def test_no_zookeeper_is_one_line_in_bounded_time() -> None:
    port = free_port()
    message = bkpy("ledger", "list", "--connect", f"zk://127.0.0.1:{port}/ledgers", status=1).stderr.decode()
    assert f"127.0.0.1:{port}" in message
    assert b"metadata URI" in bkpy("ledger", "list", "--connect", "http://x", status=1).stderr


def test_debug_shows_where() -> None:
    done = subprocess.run([*COMMAND, "--debug", "ledger", "list", "--connect", "x"], capture_output=True)
    assert done.returncode == 1
    assert b"Traceback" in done.stderr


# --- ledgers --------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read_back_byte_for_byte(uri: str, tmp_path: Path) -> None:
    lines = b"first\n\n  third \r\n" + bytes(set(range(256)) - {10}) + b"\nno line break at the end"
    ledger_id = write(uri, lines)
    assert bkpy("ledger", "read", ledger_id, uri=uri).stdout == lines + b"\n"
    assert bkpy("ledger", "read", ledger_id, "--first", 2, "--last", 2, uri=uri).stdout == b"  third \r\n"
    hexadecimal = bkpy("ledger", "read", ledger_id, "--format", "hex", uri=uri).stdout.splitlines()
    assert b"\n".join(bytes.fromhex(line.decode()) for line in hexadecimal) == lines
    objects = [json.loads(line) for line in bkpy("ledger", "read", ledger_id, "--json", uri=uri).stdout.splitlines()]
    assert [o["entry_id"] for o in objects] == [0, 1, 2, 3, 4]
    assert [o["length"] for o in objects] == [len(line) for line in lines.split(b"\n")]
    assert objects[0] == {"ledger_id": ledger_id, "entry_id": 0, "length": 5, "text": "first"}
    assert "base64" in objects[3]
    file = tmp_path / "lines"
    file.write_bytes(lines)
    from_file = as_json("ledger", "write", file, uri=uri)
    assert (from_file["entries"], from_file["bytes"]) == (5, len(lines) - 4)
    assert bkpy("ledger", "read", from_file["ledger_id"], uri=uri).stdout == lines + b"\n"


def test_many_lines(uri: str) -> None:
    lines = b"".join(b"line %d of many\n" % i for i in range(50_000))
    ledger_id = write(uri, lines, "--ensemble", "3,2,2")
    done = bkpy("ledger", "read", ledger_id, uri=uri)
    assert done.stdout == lines
    assert done.stderr == b""  # no progress bar where there is no terminal


def completed(uri: str | None, *words: str) -> list[str]:
    """What the shell offers for the last word."""
    variables = {"COMP_WORDS": " ".join(("bkpy", *words)), "COMP_CWORD": str(len(words))}
    return bkpy(uri=uri, _BKPY_COMPLETE="bash_complete", **variables).stdout.decode().split()


def test_names_and_ids_are_completed_and_without_a_cluster_nothing_is(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "TIMEOUT_S", PATIENCE_S)  # a busy machine may take longer than a shell waits
    ledger_id = write(uri, b"x\n")
    bkpy("log", "create", "completed-1", uri=uri)
    bkpy("log", "create", "completed-2", uri=uri)
    assert completed(uri, "log", "show", "comp") == ["plain,completed-1", "plain,completed-2"]
    assert f"plain,{ledger_id}" in completed(uri, "ledger", "show", str(ledger_id))
    assert f"plain,0-{ledger_id}" in completed(uri, "ledger", "show", f"0-{ledger_id}")
    assert completed(uri, "ledger", "show", "x") == []
    assert completed(uri, "bookie", "drain", "bookie-1") == ["plain,bookie-1"]
    assert completed(uri, "ledger", "list", "--bookie", "bookie-2") == ["plain,bookie-2"]
    assert completed(None, "log", "show", "comp") == []
    nowhere = f"zk://127.0.0.1:{free_port()}/ledgers"
    done = bkpy(uri=nowhere, _BKPY_COMPLETE="bash_complete", COMP_WORDS="bkpy log show c", COMP_CWORD="3")
    assert (done.stdout.strip(), done.stderr) == (b"", b"")
    bkpy("log", "delete", "--yes", "completed-1", "completed-2", uri=uri)


def test_an_empty_input_makes_an_empty_ledger(uri: str) -> None:
    ledger_id = write(uri, b"")
    assert bkpy("ledger", "read", ledger_id, uri=uri).stdout == b""
    shown = as_json("ledger", "show", ledger_id, uri=uri)
    assert (shown["state"], shown["last_entry"], shown["length"]) == ("CLOSED", -1, 0)


def test_show_list_and_delete(uri: str) -> None:
    ledger_id = as_json("ledger", "create", "--ensemble", "2,2,1", "--metadata", "app=listed", uri=uri)["ledger_id"]
    shown = as_json("ledger", "show", ledger_id, uri=uri)
    assert shown["custom_metadata"] == {"app": "listed"}
    assert (shown["ensemble_size"], shown["write_quorum"], shown["ack_quorum"]) == (2, 2, 1)
    assert len(shown["fragments"][0]["bookies"]) == 2
    assert "key" not in json.dumps(shown)  # who has a ledger's key can read and write it
    table = bkpy("ledger", "show", ledger_id, uri=uri).stdout.decode()
    assert "custom app" in table
    assert "listed" in table

    other = write(uri, b"x\n")
    assert {ledger_id, other} <= set(map(int, bkpy("ledger", "list", uri=uri).stdout.split()))
    assert {"ledger_id": other} in as_json("ledger", "list", uri=uri)
    for hold in shown["fragments"][0]["holds"]:
        assert [hold.pop(name) for name in ("state", "has_up_to", "missing_from", "error")] == [
            "complete",
            -1,
            None,
            None,
        ]
    assert shown in as_json("ledger", "list", "--long", uri=uri)
    mine = "ledger", "list", "--custom", "app=listed", "--state", "closed", "--since", "1h"
    assert bkpy(*mine, uri=uri).stdout.split() == [str(ledger_id).encode()]
    assert [one["ledger_id"] for one in as_json(*mine, uri=uri)] == [ledger_id]
    assert as_json(*mine, "--bookie", "none", uri=uri) == []
    assert bkpy("ledger", "list", "--missing-copies", "--custom", "app=listed", uri=uri).stdout == b""
    assert b"neither a duration" in bkpy("ledger", "list", "--since", "soon", uri=uri, status=2).stderr
    long = bkpy("ledger", "list", "-l", uri=uri).stdout.decode().splitlines()
    assert "2,2,1" in next(line for line in long if line.split()[0] == str(ledger_id))

    assert bkpy("ledger", "delete", "--yes", ledger_id, other, uri=uri).stdout == b""
    assert not {ledger_id, other} & set(map(int, bkpy("ledger", "list", uri=uri).stdout.split()))
    for command in (["show"], ["read"], ["tail"], ["delete", "--yes"]):
        assert str(ledger_id) in bkpy("ledger", *command, ledger_id, uri=uri, status=1).stderr.decode()


def test_nothing_is_deleted_without_a_yes(uri: str) -> None:
    ledger_id = write(uri, b"x\n")
    message = bkpy("ledger", "delete", ledger_id, uri=uri, status=2).stderr.decode()
    assert "nothing was deleted: there is nobody to ask; --yes" in message
    for answer in (b"n\n", b"\n", b"yes, no\n"):
        message = bkpy("ledger", "delete", ledger_id, uri=uri, stdin=answer, status=1).stderr.decode()
        assert message == "bkpy: nothing was deleted\n"
    assert bkpy("ledger", "read", ledger_id, uri=uri).stdout == b"x\n"
    assert bkpy("ledger", "delete", ledger_id, uri=uri, stdin=b"y\n").stderr == b""
    bkpy("ledger", "read", ledger_id, uri=uri, status=1)


def test_deleting_goes_on_past_a_ledger_that_is_missing_and_says_what_became_of_each(uri: str) -> None:
    one, two = write(uri, b"x\n"), write(uri, b"x\n")
    message = bkpy("ledger", "delete", "-y", one, 123456, two, one, uri=uri, status=1).stderr.decode()
    assert message == f"bkpy: deleted: {one}-{two}; not deleted: 123456 (there is no such ledger)\n"
    assert not {one, two} & set(map(int, bkpy("ledger", "list", uri=uri).stdout.split()))


def test_every_command_of_ledgers_takes_ids_and_ranges(uri: str) -> None:
    one, two = write(uri, b"x\n"), write(uri, b"x\n")
    assert two == one + 1
    for given in ([f"{one}-{two}"], [f"{two}, {one}"], [two, one, one]):
        shown = as_json("ledger", "show", *given, uri=uri)
        assert {ledger["ledger_id"] for ledger in shown} == {one, two}
    assert as_json("ledger", "show", f"{one}-{one}", uri=uri)["ledger_id"] == one
    explained = as_json("ledger", "explain", f"{one}-{two}", uri=uri)
    assert [ledger["ledger_id"] for ledger in explained] == [one, two]
    recovered = as_json("ledger", "recover", f"{one}-{two}", uri=uri)
    assert [ledger["state"] for ledger in recovered] == ["CLOSED", "CLOSED"]
    table = bkpy("ledger", "show", f"{one}-{two},123456", uri=uri, status=1)
    assert table.stderr.decode() == "bkpy: there is no such ledger [ledger 123456]\n"
    assert {str(one), str(two)} <= set(table.stdout.decode().split())
    bkpy("ledger", "delete", f"{one}-{two}", uri=uri, stdin=b"y\n")
    message = bkpy("ledger", "delete", "--yes", f"{one}-{two}", uri=uri, status=1).stderr.decode()
    assert message == f"bkpy: deleted: none; not deleted: {one}-{two} (there is no such ledger)\n"


def test_one_ledger_that_fails_holds_up_no_other(uri: str, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("sesame")
    one = write(uri, b"x\n")
    locked = asyncio.run(abandoned(uri, [b"x"], password=b"sesame"))
    left = asyncio.run(abandoned(uri, [b"y"]))
    refused = bkpy("ledger", "recover", f"{one}-{left}", "--json", uri=uri, status=1)
    assert [(ledger["ledger_id"], ledger["state"]) for ledger in json.loads(refused.stdout)] == [
        (one, "CLOSED"),
        (left, "CLOSED"),
    ]
    assert refused.stderr.decode() == f"bkpy: the ledger has a password, and none was given [ledger {locked}]\n"
    assert as_json("ledger", "recover", locked, "--password-file", password, uri=uri)["state"] == "CLOSED"


def test_ledgers_that_fail_alike_take_one_line(uri: str) -> None:
    message = bkpy("ledger", "show", "123000-123456,200000", uri=uri, status=1).stderr.decode()
    assert message == "bkpy: there is no such ledger [ledgers 123000-123456,200000]\n"


def test_what_was_done_is_shown_however_a_command_ends(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def until_the_store_is_away(_: bkpy_library.Client, ledger_id: int) -> int:
        if ledger_id == 2:
            raise MetadataUnavailableError("away")
        return ledger_id

    with pytest.raises(MetadataUnavailableError):
        show_each(uri, [1, 2, 3], until_the_store_is_away, lambda number: number, print, as_json=True)
    shown = capsys.readouterr()
    assert (json.loads(shown.out), shown.err) == ([1], "bkpy: not tried, or outcome unknown: 2-3\n")


def test_what_is_no_utf8_is_kept_as_a_value_and_refused_elsewhere(uri: str) -> None:
    ledger_id = int(bkpy("ledger", "write", "--metadata", "k=\udcff\udcfe", uri=uri, stdin=b"").stdout)

    async def value() -> bytes:
        async with bkpy_library.connect(uri) as client:
            return (await client.ledger_metadata(ledger_id)).custom_metadata["k"]

    assert asyncio.run(value()) == b"\xff\xfe"
    refused = bkpy("ledger", "write", "--metadata", "\udcff=1", uri=uri, status=1).stderr
    assert b"custom metadata can't have the name '\\udcff': it is no UTF-8" in refused
    assert b"'k' is given twice" in bkpy("ledger", "write", *["--metadata", "k=1"] * 2, uri=uri, status=2).stderr
    for bad in ("zk://\udcff/ledgers", f"{uri}/\udcff"):
        assert b"is no metadata URI: it has bytes" in bkpy("ledger", "list", "--connect", bad, status=1).stderr


def test_tables_show_names_of_emojis_as_they_are(uri: str) -> None:
    ledger_id = int(bkpy("ledger", "write", "--metadata", "mood=:smile:", uri=uri, stdin=b"").stdout)
    assert b":smile:" in bkpy("ledger", "show", ledger_id, uri=uri).stdout


@pytest.mark.parametrize("command", ["show", "explain", "recover", "delete", "read", "tail"])
@pytest.mark.parametrize(
    ("given", "words"),
    [("5-x", "expected ledger ids such as 7,9-12; '5-x' is none"), ("9-5", "the range 9-5 ends before it begins")],
)
def test_no_command_takes_anything_else(command: str, given: str, words: str) -> None:
    message = bkpy("ledger", command, given, uri="zk://127.0.0.1:1/ledgers", status=2).stderr.decode()
    assert words in message


def test_a_command_of_one_ledger_refuses_several() -> None:
    for command in (["ledger", "read"], ["ledger", "tail"], ["inspect", "ledger", "/nowhere"]):
        message = bkpy(*command, "5-9", uri="zk://127.0.0.1:1/ledgers", status=2).stderr.decode()
        assert "expected one ledger, but 5-9 names 5" in message
    message = bkpy("ledger", "recover", "--accept-loss", "5-9", uri="zk://127.0.0.1:1/ledgers", status=2).stderr
    assert b"--accept-loss takes one ledger at a time" in message


async def abandoned(uri: str, entries: list[bytes], **creation: Any) -> int:
    """A ledger whose writer has gone without closing it, or telling bookies what it knew to be acknowledged."""
    async with bkpy_library.connect(uri, explicit_lac_interval_s=0) as client:
        writer = await client.create_ledger(**creation)
        await writer.append_batch(entries)
        writer.abandon()
        return writer.ledger_id


def shares(uri: str, ledger_id: int) -> list[list[str]]:
    """What `ledger show` says of the three bookies of a ledger with one fragment, behind their names."""
    lines = bkpy("ledger", "show", ledger_id, uri=uri).stdout.decode().splitlines()
    (head,) = [i for i, line in enumerate(lines) if "should hold" in line]
    return [line.split("bookie-")[1].split()[1:] for line in lines[head + 1 : head + 4]]


def test_show_says_which_entries_each_bookie_has_to_hold(uri: str) -> None:
    striped = write(uri, b"x\n" * 10, "--ensemble", "3,2,2")
    (fragment,) = as_json("ledger", "show", striped, uri=uri)["fragments"]
    assert (fragment["first_entry"], fragment["last_entry"]) == (0, 9)
    assert [(h["every"], h["from"], h["count"]) for h in fragment["holds"]] == [
        (3, [0, 2], 7),
        (3, [0, 1], 7),
        (3, [1, 2], 6),
    ]
    assert [h["bookie"] for h in fragment["holds"]] == fragment["bookies"]
    shown = bkpy("ledger", "show", striped, uri=uri).stdout.decode()
    assert "every 3rd from 0 and from 2" in shown
    assert "10 (10 B)" in shown
    assert "no end yet" not in shown

    whole = write(uri, b"x\n" * 10)
    assert shares(uri, whole) == [["all", "10", "to", "the", "end"]] * 3
    assert shares(uri, write(uri, b"")) == [["none", "0", "to", "the", "end"]] * 3


def test_the_ledger_of_a_writer_that_is_gone_is_recovered(uri: str) -> None:
    ledger_id = asyncio.run(abandoned(uri, [b"one", b"two", b"three"]))
    opened = as_json("ledger", "show", ledger_id, uri=uri)
    assert (opened["state"], opened["last_entry"], opened["length"]) == ("OPEN", None, None)
    assert [h["count"] for h in opened["fragments"][0]["holds"]] == [None] * 3
    shown = bkpy("ledger", "show", ledger_id, uri=uri).stdout.decode()
    assert shown.endswith("\nThe last fragment has no end yet: the ledger is OPEN.\n")

    done = as_json("ledger", "recover", ledger_id, uri=uri)
    assert done.pop("seconds") > 0
    assert done == {
        "ledger_id": ledger_id,
        "state_before": "OPEN",
        "state": "CLOSED",
        "fragments_before": 1,
        "fragments": 1,
        "last_entry": 2,
        "length": 11,
    }
    assert bkpy("ledger", "read", ledger_id, uri=uri).stdout == b"one\ntwo\nthree\n"
    again = bkpy("ledger", "recover", ledger_id, uri=uri).stdout.decode()
    assert ["state", "before", "CLOSED"] in [line.split() for line in again.splitlines()]
    assert ["last", "entry", "2"] in [line.split() for line in again.splitlines()]


def test_entries_that_were_perhaps_never_acknowledged_are_read_on_demand(uri: str) -> None:
    """What one batch brought is behind last add confirmed until the writer says more, and this one says no more."""
    lines = b"one\ntwo\nthree\n"
    ledger_id = asyncio.run(abandoned(uri, lines.split()))
    assert bkpy("ledger", "read", ledger_id, uri=uri).stdout == b""
    assert "entry 1 is past" in bkpy("ledger", "read", ledger_id, "--first", 1, uri=uri, status=1).stderr.decode()
    for _ in range(2):
        assert bkpy("ledger", "read", ledger_id, "--unconfirmed", uri=uri).stdout == lines
        some = bkpy("ledger", "read", ledger_id, "--unconfirmed", "--first", 1, "--last", 1, uri=uri)
        assert some.stdout == b"two\n"
        for past in (["--first", 3], ["--last", 3]):
            message = bkpy("ledger", "read", ledger_id, "--unconfirmed", *past, uri=uri, status=1).stderr.decode()
            assert f"ledger {ledger_id}, entry 3]" in message
        # Then again, with the ledger closed.
        bkpy("ledger", "recover", ledger_id, uri=uri)
    assert bkpy("ledger", "read", write(uri, b""), "--unconfirmed", uri=uri).stdout == b""


def test_recovery_needs_the_ledger_and_its_password(uri: str, tmp_path: Path) -> None:
    assert "ledger 123456" in bkpy("ledger", "recover", 123456, uri=uri, status=1).stderr.decode()
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    ledger_id = asyncio.run(abandoned(uri, [b"x"], password=b"s3cret"))
    assert "password" in bkpy("ledger", "recover", ledger_id, uri=uri, status=1).stderr.decode()
    assert as_json("ledger", "show", ledger_id, uri=uri)["state"] == "OPEN"
    assert as_json("ledger", "recover", ledger_id, "--password-file", secret, uri=uri)["last_entry"] == 0


def test_a_recovery_that_can_not_decide_says_what_each_bookie_answered(uri: str, cluster: LocalCluster) -> None:
    ledger_id = asyncio.run(abandoned(uri, [b"one", b"two"]))
    asyncio.run(kill(cluster.bookies[:2]))
    try:
        message = bkpy("ledger", "recover", ledger_id, uri=uri, status=1).stderr.decode()
        assert "too few bookies" in message
        assert all(f"{bookie.id}: " in message for bookie in cluster.bookies[:2])
        assert as_json("ledger", "show", ledger_id, uri=uri)["state"] == "IN_RECOVERY"
        shown = bkpy("ledger", "show", ledger_id, uri=uri).stdout.decode()
        assert "no end yet: the ledger is IN_RECOVERY" in shown
    finally:
        asyncio.run(cluster.start())
    done = as_json("ledger", "recover", ledger_id, uri=uri)
    assert (done["state_before"], done["state"], done["last_entry"]) == ("IN_RECOVERY", "CLOSED", 1)


async def kill(bookies: list[LocalBookie]) -> None:
    for bookie in bookies:
        await bookie.kill()


def test_a_warning_is_one_line(uri: str) -> None:
    warned = bkpy("ledger", "create", "--ensemble", "2,2,1", uri=uri).stderr.decode()
    assert warned.startswith("bkpy: warning: an ack quorum of 1 ")
    assert warned.count("\n") == 1


def test_passwords_come_from_a_file(uri: str, tmp_path: Path) -> None:
    secret, wrong = tmp_path / "secret", tmp_path / "wrong"
    secret.write_text("s3cret\n")
    wrong.write_text("wrong\n")
    ledger_id = write(uri, b"x\n", "--password-file", str(secret), "--digest", "hmac-sha256")
    assert bkpy("ledger", "read", ledger_id, "--password-file", secret, uri=uri).stdout == b"x\n"
    for options in ([], ["--password-file", wrong]):
        message = bkpy("ledger", "read", ledger_id, *options, uri=uri, status=1).stderr.decode()
        assert f"ledger {ledger_id}" in message
    message = bkpy("ledger", "read", ledger_id, "--password-file", tmp_path / "none", uri=uri, status=1).stderr.decode()
    assert "No such file" in message
    secret.write_text("\n")
    message = bkpy("ledger", "write", "--password-file", secret, uri=uri, stdin=b"x\n", status=1).stderr.decode()
    assert message == f"bkpy: the password file holds no password [file {secret}]\n"


def test_errors_name_the_ledger_and_what_is_missing(uri: str) -> None:
    assert "ledger 123456" in bkpy("ledger", "read", 123456, uri=uri, status=1).stderr.decode()
    message = bkpy("ledger", "write", "--ensemble", "5,5,3", uri=uri, stdin=b"x\n", status=1).stderr.decode()
    assert "5" in message
    assert "bookies" in message
    message = bkpy("ledger", "write", "--ensemble", "1,2,2", uri=uri, stdin=b"x\n", status=1).stderr.decode()
    assert "1, 2, 2" in message
    done = PRELOADED.run(["ledger", "write"], stdin=b"x\n" + bytes(5 << 20), env=environment(uri), timeout_s=PATIENCE_S)
    assert "line 2 is longer" in done.stderr.decode()
    ledger_id = write(uri, b"a\nb\n")
    message = bkpy("ledger", "read", ledger_id, "--last", 5, uri=uri, status=1).stderr.decode()
    assert f"ledger {ledger_id}, entry" in message
    message = bkpy("ledger", "read", ledger_id, "--first", 5, uri=uri, status=1).stderr.decode()
    assert f"entry 5 is past the last entry, 1 [ledger {ledger_id}" in message
    message = bkpy("ledger", "read", ledger_id, "--first", 1, "--last", 0, uri=uri, status=2).stderr.decode()
    assert "--last 0 lies before --first 1" in message
    assert "No such file" in bkpy("ledger", "write", "/nonexistent", uri=uri, status=1).stderr.decode()


def test_a_tail_follows_a_writer_to_the_end(uri: str) -> None:
    with start("ledger", "write", uri=uri, stdin=subprocess.PIPE) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        ledger_id = int(writer.stdout.readline())
        with start("ledger", "tail", ledger_id, uri=uri) as tail:
            assert tail.stdout is not None
            writer.stdin.write(b"one\ntwo\n")
            writer.stdin.flush()
            assert tail.stdout.readline() == b"one\n"
            assert tail.stdout.readline() == b"two\n"
            writer.stdin.write(b"three\n")
            writer.stdin.close()
            assert tail.stdout.read() == b"three\n"
            assert tail.wait(PATIENCE_S) == 0
        assert writer.wait(PATIENCE_S) == 0


def test_ctrl_c_ends_a_tail_quietly(uri: str) -> None:
    with start("ledger", "write", uri=uri, stdin=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdin is not None
        ledger_id = int(writer.stdout.readline())
        writer.stdin.write(b"one\ntwo\n")
        writer.stdin.flush()
        with start("ledger", "tail", ledger_id, uri=uri) as tail:
            assert tail.stdout is not None
            assert tail.stderr is not None
            assert tail.stdout.readline() == b"one\n"
            tail.send_signal(signal.SIGINT)
            assert tail.wait(PATIENCE_S) == 130
            assert tail.stderr.read() == b""
        writer.send_signal(signal.SIGINT)
        assert writer.wait(PATIENCE_S) == 130
    # A writer that is interrupted closes its ledger behind what it has appended.
    assert as_json("ledger", "show", ledger_id, uri=uri)["last_entry"] == 1


def test_a_reader_that_goes_away_is_no_error_message(uri: str) -> None:
    ledger_id = write(uri, b"a line that is long enough to fill the pipe\n" * 20_000)
    with start("ledger", "read", ledger_id, uri=uri) as reading:
        assert reading.stdout is not None
        assert reading.stderr is not None
        reading.stdout.readline()
        reading.stdout.close()
        assert reading.wait(PATIENCE_S) == 141
        assert reading.stderr.read() == b""


# --- clusters -------------------------------------------------------------------------------------------------------


def test_bookies_and_cluster(uri: str, cluster: LocalCluster) -> None:
    listed = as_json("bookies", "list", uri=uri)
    assert as_json("bookies", "list", "--state", "writable", uri=uri) == listed
    assert as_json("bookies", "list", "--state", "read-only", uri=uri) == []
    assert [(b["bookie_id"], b["address"], b["read_only"]) for b in listed] == [
        (b.id, b.address, False) for b in cluster.bookies
    ]
    table = bkpy("bookies", "list", uri=uri).stdout.decode()
    assert all(bookie.address in table for bookie in cluster.bookies)
    shown = as_json("cluster", "show", uri=uri)
    assert (shown["layout"], shown["bookies_writable"], shown["root"]) == ("long-hierarchical", 3, "/ledgers")
    assert shown["instance_id"] in bkpy("cluster", "show", uri=uri).stdout.decode()


def test_cluster_init(zookeeper: ZooKeeperServer) -> None:
    uri = f"zk://{zookeeper.connect_string}/cli/init"
    assert "cluster init" in bkpy("ledger", "list", uri=uri, status=1).stderr.decode()
    made = as_json("cluster", "init", "--layout", "flat", uri=uri)
    assert made["layout"] == "flat"
    assert as_json("cluster", "show", uri=uri) == made
    assert "already" in bkpy("cluster", "init", uri=uri, status=1).stderr.decode()
    assert as_json("cluster", "init", "--if-needed", uri=uri) == made
    other = f"zk://{zookeeper.connect_string}/cli/init-if-needed"
    assert as_json("cluster", "init", "--if-needed", uri=other)["layout"] == "long-hierarchical"
    assert as_json("bookies", "list", uri=uri) == []
    assert bkpy("ledger", "list", uri=uri).stdout == b""
