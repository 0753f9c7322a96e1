"""What is got out of bookies' directories alone, and what is said of each entry."""

from __future__ import annotations

import base64
import gzip
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import cluster_of
from tests.in_process import InProcess, runtime_here
from tests.unit.storage.entry_log.test_entry_log import Carrying
from tests.unit.storage.support import records

from bkpy.errors import ConfigError
from bkpy.protocol.restore.salvaging import LedgerEnd
from bkpy.protocol.wire.records import RecordCodec
from bkpy.runtime.system import RealFiles
from bkpy.storage.entry_log.entry_log import BlockWriter, log_name
from bkpy.storage.index.ids import Ids
from bkpy.storage.tools.salvage import Found, salvage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from bkpy.client.client import Client

ALL: dict[str, Any] = {
    "ensemble_size": 3,
    "write_quorum": 3,
    "ack_quorum": 3,
}  # what is acknowledged is on every bookie


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[InProcess]:
    made = InProcess(tmp_path / "bookies", real_disks=True)
    await made.start("abc")
    yield made
    await made.stop()


def directories(root: Path, names: str = "abc") -> list[str]:
    return [str(root / name / kind) for name in names for kind in ("journal", "ledgers")]


def salvaged(root: Path, file: Path, names: str = "abc", **options: Any) -> tuple[Found, list[dict[str, Any]]]:
    runtime = runtime_here()
    found = salvage(runtime.files, runtime.store, directories(root, names), str(file), time_ms=7, **options)
    return found, [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]


def entries(lines: list[dict[str, Any]], ledger_id: int) -> dict[int, tuple[bytes, str, tuple[str, ...]]]:
    return {
        line["entry"]: (base64.b64decode(line["bytes"]), line["certain"], tuple(line["bookies"]))
        for line in lines
        if line.get("ledger") == ledger_id and "entry" in line
    }


async def written(client: Client, sizes: tuple[int, int, int], count: int = 20, *, close: bool = True) -> int:
    size, write_quorum, ack_quorum = sizes
    writer = await client.create_ledger(ensemble_size=size, write_quorum=write_quorum, ack_quorum=ack_quorum)
    for number in range(count):
        await writer.append(b"%d" % number * 9)
    if close:
        await writer.close()
    return writer.ledger_id


@pytest.mark.thorough
@pytest.mark.parametrize("sizes", [(3, 3, 2), (3, 2, 2)])
@pytest.mark.parametrize("stopped", [True, False], ids=["logs", "journals"])
async def test_every_acknowledged_entry_is_found_once_with_the_bookies_that_have_it(
    local: InProcess, tmp_path: Path, sizes: tuple[int, int, int], stopped: bool
) -> None:
    client = await local.client(explicit_lac_interval_s=0)  # it would prove the last entry, too
    first, second = await written(client, sizes), await written(client, sizes, close=False)
    root = local.directory
    if stopped:
        for node in local.nodes:
            await node.stop()
    else:
        root = tmp_path / "killed"  # what a bookie leaves that is killed now
        shutil.copytree(local.directory, root)
    found, lines = salvaged(root, tmp_path / "out")
    assert (found.ledgers, found.entries, found.differ, found.damages) == (2, 40, 0, 0)
    assert lines[0] | {"directories": None} == {
        "format": "bkpy salvage", "version": 1, "time_ms": 7, "directories": None, "backup": None
    }  # fmt: skip
    assert lines[-1]["end"]["entries"] == 40
    for ledger_id in (first, second):
        got = entries(lines, ledger_id)
        assert [got[number][0] for number in range(20)] == [b"%d" % number * 9 for number in range(20)]
        assert {got[number][1] for number in range(19)} == {"acknowledged"}
        assert got[19][1] == "unproved"
        assert all(len(bookies) >= sizes[2] for _, _, bookies in got.values())
    assert not any("not_found" in line for line in lines)
    assert [name for name in runtime_here().files.listdir(str(tmp_path)) if name.startswith("out")] == ["out"]
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o600


@pytest.mark.thorough
async def test_a_backup_tells_where_a_closed_ledger_ends(local: InProcess, tmp_path: Path) -> None:
    client = await local.client(explicit_lac_interval_s=0)
    ledger_id = await written(client, (3, 3, 2))
    assert cluster_of(client)
    for node in local.nodes:
        await node.stop()
    for last, certain in ((19, "in the ledger"), (18, "behind the end")):
        ends = {ledger_id: LedgerEnd("CLOSED", last, "crc32c")}
        _, lines = salvaged(local.directory, tmp_path / f"out-{last}", ends=ends, backup="9b1c")
        got = entries(lines, ledger_id)
        assert (got[18][1], got[19][1]) == ("acknowledged", certain)
        assert next(line for line in lines if "state" in line)["last_entry"] == last
    _, lines = salvaged(local.directory, tmp_path / "out", ends={ledger_id: LedgerEnd("OPEN", -1, "crc32c")})
    assert entries(lines, ledger_id)[19][1] == "unproved"


@pytest.mark.thorough
async def test_damage_hides_no_other_copy_and_is_reported(local: InProcess, tmp_path: Path) -> None:
    client = await local.client()
    ledger_id = await written(client, (3, 3, 2))
    for node in local.nodes:
        await node.stop()
    for file in [*(local.directory / "a").rglob("*.log"), *(local.directory / "a").rglob("*.txn")]:
        data = bytearray(file.read_bytes())
        at = data.find(b"7" * 9)
        if at >= 0:
            data[at] ^= 1
            file.write_bytes(data)
    found, lines = salvaged(local.directory, tmp_path / "out")
    assert found.damages >= 1
    assert any("damage" in line for line in lines)
    got = entries(lines, ledger_id)
    assert [got[number][0] for number in range(20)] == [b"%d" % number * 9 for number in range(20)]
    assert got[7][2] == ("b", "c")
    alone, lines = salvaged(local.directory, tmp_path / "alone", "a")
    assert 7 not in entries(lines, ledger_id)
    assert alone.entries == len(entries(lines, ledger_id)) < 20


async def test_a_record_that_is_wrong_in_a_sound_block_is_left_out(tmp_path: Path) -> None:
    runtime = runtime_here()
    parts: list[Any] = []
    RecordCodec(7).encode_run(parts, [b"one", b"two", b"three"], 0, -1, 0)
    data = bytearray(b"".join(parts))
    data[data.index(b"two")] ^= 1
    log = BlockWriter(runtime.files, str(tmp_path), 1, bytes(16))
    log.append(7, Ids(0, 3), [(0, 0)], [bytes(data)])
    log.finish()
    found = salvage(runtime.files, runtime.store, [str(tmp_path)], str(tmp_path / "out"), time_ms=7)
    lines = [json.loads(line) for line in gzip.decompress((tmp_path / "out").read_bytes()).splitlines()]
    assert (sorted(entries(lines, 7)), found.entries) == ([0, 2], 2)
    assert entries(lines, 7)[2][0] == b"three"


@pytest.mark.parametrize("tagged", [True, False])
async def test_an_image_of_a_block_in_a_damaged_one_proves_nothing(tmp_path: Path, tagged: bool) -> None:
    """The image names a ledger that the log has, with entries that were never appended to it."""
    log = Carrying(finish=False, tagged=tagged)
    log.disk.flip(log.path, log.places[1][0])
    runtime = runtime_here()
    (tmp_path / log_name(1)).write_bytes(log.disk.contents(log.path))
    salvage(runtime.files, runtime.store, [str(tmp_path)], str(tmp_path / "out"), time_ms=7)
    lines = [json.loads(line) for line in gzip.decompress((tmp_path / "out").read_bytes()).splitlines()]
    got = {entry_id: certain for entry_id, (_, certain, _) in entries(lines, 1).items()}
    said = next(line["acknowledged"] for line in lines if "acknowledged" in line)
    if tagged:
        assert (sorted(got), said) == ([0, 2], -1)
    else:
        assert sorted(got) == [0, 2, 100, 101]
        assert {got[entry_id] for entry_id in (2, 100, 101)} == {"unproved"}
        assert said == -1


async def test_an_image_of_a_block_that_is_below_what_was_acknowledged_is_unproved(tmp_path: Path) -> None:
    log = Carrying(finish=False, tagged=False)
    log.disk.flip(log.path, log.places[1][0])
    runtime = runtime_here()
    (tmp_path / log_name(1)).write_bytes(log.disk.contents(log.path))
    other = BlockWriter(runtime.files, str(tmp_path), 2, bytes(16))
    other.append(1, Ids(200, 1), [(0, 0)], [records(1, (200,), lac=199)])
    other.finish()
    found = salvage(runtime.files, runtime.store, [str(tmp_path)], str(tmp_path / "out"), time_ms=7)
    lines = [json.loads(line) for line in gzip.decompress((tmp_path / "out").read_bytes()).splitlines()]
    got = {entry_id: certain for entry_id, (_, certain, _) in entries(lines, 1).items()}
    unproved = dict.fromkeys((2, 100, 101, 200), "unproved")
    assert got == {0: "acknowledged", **unproved}
    assert found.certain == {"acknowledged": 1, "unproved": 4}


@pytest.mark.thorough
async def test_what_is_missing_between_entries_is_named(local: InProcess, tmp_path: Path) -> None:
    client = await local.client()
    ledger_id = await written(client, (3, 2, 2))
    for node in local.nodes:
        await node.stop()
    _, lines = salvaged(local.directory, tmp_path / "out", "a")
    found = set(entries(lines, ledger_id))
    (missing,) = (line["not_found"] for line in lines if "not_found" in line)
    assert {number for first, last in missing for number in range(first, last + 1)} == set(range(max(found))) - found


@pytest.mark.thorough
async def test_copies_that_differ_are_both_written(local: InProcess, tmp_path: Path) -> None:
    other = InProcess(tmp_path / "other", real_disks=True)
    await other.start("abc")
    ids = []
    for one, payload in ((local, b"one"), (other, b"two")):
        writer = await (await one.client()).create_ledger(**ALL)
        await writer.append(payload)
        await writer.append(b"same")
        ids.append(writer.ledger_id)
        await one.node("a").stop()
    runtime = runtime_here()
    where = directories(local.directory, "a") + directories(other.directory, "a")
    found = salvage(runtime.files, runtime.store, where, str(tmp_path / "out"), time_ms=7)
    assert (found.entries, found.differ) == (2, 1)
    lines = [json.loads(line) for line in gzip.decompress((tmp_path / "out").read_bytes()).splitlines()]
    both = [base64.b64decode(line["bytes"]) for line in lines if line.get("differs")]
    assert (sorted(both), len(set(ids))) == ([b"one", b"two"], 1)
    await other.stop()


@pytest.mark.thorough
async def test_a_running_bookie_a_file_that_exists_and_other_directories_are_refused(
    local: InProcess, tmp_path: Path
) -> None:
    runtime = runtime_here()
    with pytest.raises(ConfigError, match="stop it first"):
        salvaged(local.directory, tmp_path / "out")
    for node in local.nodes:
        await node.stop()
    (tmp_path / "there").write_bytes(b"")
    with pytest.raises(ConfigError, match="exists"):
        salvaged(local.directory, tmp_path / "there")
    (tmp_path / "empty").mkdir()
    for directory, why in ((tmp_path / "empty", "no entry logs"), (tmp_path / "none", "no such directory")):
        with pytest.raises(ConfigError, match=why):
            salvage(runtime.files, runtime.store, [str(directory)], str(tmp_path / "out"), time_ms=7)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.rows").exists()


async def test_one_salvage_at_a_time_is_written_to_a_file(local: InProcess, tmp_path: Path) -> None:
    for node in local.nodes:
        await node.stop()
    out, refused = tmp_path / "out", []

    def beside(path: str) -> None:
        try:
            salvaged(local.directory, out, "b")
        except ConfigError as error:
            refused.append(error.message)

    _, lines = salvaged(local.directory, out, "a", progress=beside)
    assert refused
    assert all("another process is writing a salvage" in message for message in refused)
    assert {path.split("/")[-2] for path in lines[0]["directories"]} == {"a"}
    assert [name for name in runtime_here().files.listdir(str(tmp_path)) if name.startswith("out")] == ["out"]


async def test_a_salvage_that_ends_as_another_one_begins_is_not_written_over(
    local: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node in local.nodes:
        await node.stop()
    out, lock = tmp_path / "out", RealFiles.lock

    def lock_behind_another(self: RealFiles, name: str) -> Any:
        if name.endswith(".new"):
            out.write_bytes(b"of another process")
        return lock(self, name)

    monkeypatch.setattr(RealFiles, "lock", lock_behind_another)
    with pytest.raises(ConfigError, match="exists: it is not replaced"):
        salvaged(local.directory, out)
    assert out.read_bytes() == b"of another process"
    assert [name for name in runtime_here().files.listdir(str(tmp_path)) if name.startswith("out")] == ["out"]


@pytest.mark.thorough
async def test_a_salvage_that_was_killed_is_begun_again(local: InProcess, tmp_path: Path) -> None:
    ledger_id = await written(await local.client(), (3, 3, 2))
    for node in local.nodes:
        await node.stop()
    (tmp_path / "out.new").write_bytes(b"half of one, longer than what comes" * 10_000)
    runtime_here().store.open(str(tmp_path / "out.rows"), create=True).close()
    _, lines = salvaged(local.directory, tmp_path / "out")
    assert len(entries(lines, ledger_id)) == 20
