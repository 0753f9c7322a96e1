"""The directory of an export: whatever stops an exporter, wherever, readers see each row once, and none in half."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import shutil
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from tests.examples import stride
from tests.golden.regenerate import EXPORT, export_manifest
from tests.spark.power import PowerModel

from bkpy.errors import BookKeeperError, ConfigError, CorruptDataError, UnsupportedVersionError
from bkpy.spark.disk import Disk
from bkpy.spark.export_directory import ExportDirectory, look
from bkpy.spark.id_runs import NOTHING, Runs
from bkpy.spark.manifest import ExportLayout, ExportSource, Totals, decode, first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

SOURCE = ExportSource("cluster-1")
LAYOUT = ExportLayout("json", partition_by="day")
ROUNDS = [[1, 2, 4], [3, 9], [], [5, 6, 7, 8]]  # ledger 3 closes after 4
BATCH = 2
LATER = [pytest.mark.exhaustive, pytest.mark.long]


@pytest.fixture(autouse=True)
def quick_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has to be on disk here. `PowerModel` sees what was synced, and makes what a loss of power leaves."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


class KilledError(BaseException):
    """The process is no more."""


class SteppedDisk(Disk):
    """The real file system, with something done before a step of one's choice, which is counted from 0."""

    def __init__(self, at: int, what: Callable[[], None], *, torn: bool = False) -> None:
        self.steps = 0
        self.appends: list[int] = []  # which of the steps
        self._at = at
        self._what = what
        self._torn = torn
        self._dead = False

    def _step(self) -> None:
        if self._dead:  # the kernel closes a dead process' files, and does nothing else for it
            raise KilledError
        self.steps += 1
        if self.steps == self._at + 1:
            try:
                self._what()
            except KilledError:
                self._dead = True
                raise

    def create(self, path: Path, data: bytes) -> int:
        self._step()
        return super().create(path, data)

    def append(self, fd: int, data: bytes) -> None:
        self.appends.append(self.steps)
        try:
            self._step()
        except BaseException:
            if self._torn:
                os.write(fd, data[: len(data) // 2])
            raise
        super().append(fd, data)

    def sync(self, path: Path) -> None:
        self._step()
        super().sync(path)

    def sync_dir(self, path: Path) -> None:
        self._step()
        super().sync_dir(path)

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)

    def make_dir(self, path: Path) -> None:
        self._step()
        super().make_dir(path)

    def unlink(self, path: Path) -> None:
        self._step()
        super().unlink(path)

    def remove_tree(self, path: Path) -> None:
        if self._dead:
            raise KilledError
        try:
            self._step()
        except BaseException:
            for file in sorted(path.rglob("*"))[:1]:  # one of its files has gone
                if file.is_file():
                    file.unlink()
            raise
        super().remove_tree(path)


def stage(staging: Path, ids: Iterable[int]) -> list[Path]:
    """What Spark leaves: two files, of two days, and what is nobody's business."""
    write = uuid.uuid4()
    (staging / "_temporary").mkdir(parents=True)
    (staging / "_SUCCESS").touch()
    files = []
    for task, some in enumerate([list(ids)[::2], list(ids)[1::2]]):
        if some:
            day = staging / f"day=2026-11-{20 + task}"
            day.mkdir()
            file = day / f"part-0000{task}-{write}.c000.json"
            file.write_text("".join(json.dumps({"id": i, "whole": True}) + "\n" for i in some))
            (day / f".{file.name}.crc").touch()
            files.append(file)
    return files


def run(
    path: Path,
    available: Iterable[int],
    disk: Disk | None = None,
    batch: int = BATCH,
    added: list[int] | None = None,
) -> None:
    """A run of an exporter: everything that is available and not there yet, in batches; `added` gets what is."""
    directory = ExportDirectory.open(path, SOURCE, LAYOUT, disk)
    try:
        new = [i for i in sorted(available) if i not in directory.state.done]
        for i in range(0, len(new), batch):
            ids = new[i : i + batch]
            staging = directory.begin(Runs.of(ids))
            stage(staging, ids)
            directory.commit(staging, Runs.of(ids), rows=len(ids), bytes=10 * len(ids), ledgers=len(ids))
            if added is not None:
                added += ids
    finally:
        directory.close()


def seen(path: Path) -> list[int]:
    """What a reader of the directory finds at this moment, every file of it whole."""
    rows = []
    for file in path.rglob("*"):
        hidden = any(part.startswith(("_", ".")) for part in file.relative_to(path).parts)
        if file.is_file() and not hidden:
            lines = file.read_text().splitlines()
            assert lines, f"{file} is empty"
            rows += [json.loads(line)["id"] for line in lines]
    assert len(set(rows)) == len(rows), "a row is there twice"
    return sorted(rows)


def check_whole(path: Path, ids: list[int]) -> None:
    assert seen(path) == sorted(ids)
    state = look(path, SOURCE, LAYOUT)
    assert (state.done, state.totals.rows, state.moves) == (Runs.of(ids), len(ids), None)
    assert [name.partition("-")[0] for name in os.listdir(path / "_bkpy")] == ["manifest"]


def manifest_of(path: Path) -> Path:
    (manifest,) = (path / "_bkpy").glob("manifest-*")
    return manifest


def counted(path: Path, ids: list[int], batch: int = BATCH) -> SteppedDisk:
    """The disk of a run on a copy, which has counted its steps."""
    copy = path.with_name("steps")
    if path.exists():
        shutil.copytree(path, copy)
    disk = SteppedDisk(-1, lambda: None)
    run(copy, ids, disk, batch)
    check_whole(copy, ids)
    shutil.rmtree(copy)
    return disk


def growing() -> Iterator[tuple[list[int], list[int]]]:
    """What had been exported before each run, and all that there is then."""
    for i in range(len(ROUNDS)):
        yield [*itertools.chain(*ROUNDS[:i])], [*itertools.chain(*ROUNDS[: i + 1])]


def killed() -> None:
    raise KilledError


def test_each_run_adds_what_is_new(tmp_path: Path) -> None:
    made: dict[Path, int] = {}
    for _, ids in growing():
        run(tmp_path / "out", ids)
        check_whole(tmp_path / "out", ids)
        before, made = made, {file: file.stat().st_ino for file in (tmp_path / "out").glob("day=*/*")}
        assert made.items() >= before.items(), "files that were there were written again"
    names = sorted(file.name for file in (tmp_path / "out").glob("day=*/*"))
    assert names[:2] == ["part-00000000-00000-c000.json", "part-00000000-00001-c000.json"]
    assert len(names) == len(set(names))


@pytest.mark.exhaustive
@pytest.mark.parametrize("torn", [False, True], ids=["killed", "torn"])
def test_killed_at_any_step_it_goes_on(tmp_path: Path, torn: bool) -> None:
    path = tmp_path / "out"
    for before, ids in growing():
        for step in range(counted(path, ids).steps):
            copy = tmp_path / f"killed-{len(ids)}-{step}"
            if path.exists():
                shutil.copytree(path, copy)
            with pytest.raises(KilledError):
                run(copy, ids, SteppedDisk(step, killed, torn=torn))
            assert set(before) <= set(seen(copy)) <= set(ids)
            run(copy, ids)
            check_whole(copy, ids)
            shutil.rmtree(copy)
        run(path, ids)


@pytest.fixture
def power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PowerModel]:
    (tmp_path / "disk").mkdir()
    model = PowerModel(tmp_path / "disk", monkeypatch)
    yield model
    model.close()


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param([1], id="1"),
        pytest.param([None, 1], marks=pytest.mark.exhaustive, id="some"),
        *(pytest.param([seed], marks=pytest.mark.exhaustive, id=str(seed)) for seed in range(2, 8)),
        *(pytest.param([seed], marks=LATER, id=str(seed)) for seed in range(8, 20)),
    ],
)
def test_power_lost_at_any_step_costs_nothing_that_was_added(
    tmp_path: Path, power: PowerModel, seeds: list[int | None]
) -> None:
    """Nor after the last step. The directories above the export's own are new as well."""
    disk, path = tmp_path / "disk", tmp_path / "disk" / "above" / "out"
    kept = tmp_path / "kept"
    for before, ids in growing():
        shutil.copytree(disk, kept)
        steps = counted(path, ids).steps
        for seed, step in itertools.product(seeds, [*range(0, steps, stride()), steps]):
            shutil.rmtree(disk / "above", ignore_errors=True)
            shutil.copytree(kept, disk, dirs_exist_ok=True)
            power.settle()
            added = list(before)
            with suppress(KilledError):
                run(path, ids, SteppedDisk(step, killed, torn=seed is not None), added=added)
            power.lose_power(None if seed is None else random.Random(f"{seed} {step}"))
            assert set(added) <= set(seen(path)) <= set(ids), f"seed {seed}, step {step}"
            run(path, ids)
            check_whole(path, ids)
        shutil.rmtree(kept)


def test_power_lost_after_an_exporter_was_killed_costs_nothing_that_was_added(
    tmp_path: Path, power: PowerModel
) -> None:
    disk, path = tmp_path / "disk", tmp_path / "disk" / "above" / "out"
    ids = ROUNDS[0]
    for step in range(0, counted(path, ids).steps, stride()):
        shutil.rmtree(disk / "above", ignore_errors=True)
        power.settle()
        with pytest.raises(KilledError):
            run(path, ids, SteppedDisk(step, killed))
        run(path, ids)
        power.lose_power()
        assert seen(path) == sorted(ids)
        run(path, ids)
        check_whole(path, ids)


def test_the_model_of_lost_power_keeps_what_was_synced_and_nothing_else(tmp_path: Path, power: PowerModel) -> None:
    disk, real = tmp_path / "disk", Disk()
    real.make_dir(disk / "d")
    fd = real.create(disk / "d" / "a", b"synced")
    os.write(fd, b", and not")
    os.close(fd)
    (disk / "d" / "b").write_bytes(b"never synced")
    real.sync_dir(disk / "d")
    real.rename(disk / "d" / "b", disk / "d" / "c")
    for synced, left in ((False, {}), (True, {"d": None, "d/a": b"synced", "d/b": b""})):
        if synced:
            real.make_dir(disk / "d")
            os.close(real.create(disk / "d" / "a", b"synced"))
            (disk / "d" / "b").touch()
            real.sync_dir(disk / "d")
            real.sync_dir(disk)
            (disk / "d" / "a").unlink()
            real.rename(disk / "d" / "b", disk / "c")
        power.lose_power()
        found = {str(path.relative_to(disk)): path for path in disk.rglob("*")}
        assert {name: None if path.is_dir() else path.read_bytes() for name, path in found.items()} == left
    real.rename(disk / "d" / "b", disk / "c")
    outcomes = set()
    for seed in range(50):
        power.lose_power(random.Random(seed))
        outcomes.add(tuple(sorted(str(path.relative_to(disk)) for path in disk.rglob("[bc]"))))
        shutil.rmtree(disk / "d")
        (disk / "c").unlink(missing_ok=True)
        (disk / "d").mkdir()
        (disk / "d" / "b").touch()
        power.settle()
        real.rename(disk / "d" / "b", disk / "c")
    assert outcomes == {("c",), ("d/b",), ("c", "d/b")}


@pytest.mark.exhaustive
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.long)])
def test_killed_while_it_recovers_it_goes_on(tmp_path: Path, every: int) -> None:
    ids = ROUNDS[0]
    for first in range(0, counted(tmp_path / "none", ids).steps, every):
        left = tmp_path / str(first)
        with pytest.raises(KilledError):
            run(left, ids, SteppedDisk(first, killed))
        for second in itertools.count():
            path = tmp_path / f"{first}-{second}"
            if left.exists():
                shutil.copytree(left, path)
            disk = SteppedDisk(second, killed)
            with suppress(KilledError):
                run(path, ids, disk)
            seen(path)
            run(path, ids)
            check_whole(path, ids)
            shutil.rmtree(path)
            if disk.steps <= second:
                break


@pytest.mark.parametrize("code", [errno.ENOSPC, pytest.param(errno.EIO, marks=pytest.mark.exhaustive)])
def test_a_disk_that_fails_at_any_step_costs_nothing_but_the_run(tmp_path: Path, code: int) -> None:
    def fail() -> None:
        raise OSError(code, os.strerror(code))

    ids = ROUNDS[0]
    for step in range(0, counted(tmp_path / "none", ids).steps, stride()):
        path = tmp_path / str(step)
        with suppress(OSError, ConfigError):  # the last steps only clean up
            run(path, ids, SteppedDisk(step, fail, torn=True))
        seen(path)
        run(path, ids)
        check_whole(path, ids)


@pytest.mark.exhaustive
def test_of_two_that_think_they_have_it_one_goes_on(tmp_path: Path) -> None:
    """One is stopped at any step, another does all there is to do, and then the first one wakes up."""
    ids, more = ROUNDS[0], [*ROUNDS[0], *ROUNDS[1]]
    for step in range(0, counted(tmp_path / "none", ids).steps, stride()):
        path = tmp_path / str(step)
        with suppress(BookKeeperError, OSError):
            run(path, ids, SteppedDisk(step, lambda path=path: run(path, more)))  # type: ignore[misc]
        assert set(seen(path)) in (set(ids), set(more)), f"woken up at step {step}"
        run(path, more)
        check_whole(path, more)


def test_of_two_that_think_they_have_it_one_goes_on_wherever_the_other_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an exporter that was stopped begins a new manifest: what it knows is not all that is there."""
    ids = [*range(0, 26_000, 2)]  # so many runs that the second batch begins a new manifest
    for at in itertools.count(0, stride()):
        path = tmp_path / str(at)
        stopped = False

        def other(path: Path = path) -> None:
            nonlocal stopped
            stopped = True
            run(path, ids, batch=5000)

        with monkeypatch.context() as patch, suppress(BookKeeperError, OSError):
            patch.setattr(os, "listdir", with_something_before(os.listdir, at, other))
            run(path, ids, batch=7000)
        assert seen(path) == ids, f"stopped at look {at}"
        run(path, ids)
        check_whole(path, ids)
        if not stopped:
            break
    assert at > 10


def with_something_before(
    listdir: Callable[[Path], list[str]], at: int, what: Callable[[], None]
) -> Callable[[Path], list[str]]:
    calls = itertools.count()

    def look_into(path: Path) -> list[str]:
        if next(calls) == at:
            what()
        return listdir(path)

    return look_into


@pytest.mark.parametrize("which", [slice(-2, -1), pytest.param(slice(None), marks=pytest.mark.exhaustive)], ids=str)
def test_of_two_that_take_turns_one_goes_on(tmp_path: Path, which: slice) -> None:
    """One is stopped before it notes something down, as what it has written, and wakes up at any step of another."""
    ids = ROUNDS[0][:BATCH]
    stops = counted(tmp_path / "none", ids).appends[which]  # the last but one is: this batch is part of the export
    for stop, wake in itertools.product(stops, range(0, counted(tmp_path / "none", ids, batch=1).steps, stride())):
        path = tmp_path / f"{stop}-{wake}"
        with suppress(BookKeeperError, OSError):
            take_turns(path, ids, stop, wake)
        assert set(seen(path)) <= set(ids), f"stopped at step {stop}, woken up at step {wake}"
        run(path, ids)
        check_whole(path, ids)
        shutil.rmtree(path)


def take_turns(path: Path, ids: list[int], stop: int, wake: int) -> None:
    """An exporter goes as far as step `stop`, another as far as step `wake`, the first one to its end, the other too.

    Their batches are of different sizes, so that files don't have the same names by chance.
    """
    stopped, woken = threading.Event(), threading.Event()

    def sleep() -> None:
        stopped.set()
        assert woken.wait(60)

    with ThreadPoolExecutor(1) as pool:
        sleeper = pool.submit(run, path, ids, SteppedDisk(stop, sleep))
        assert stopped.wait(60)

        def go_on() -> None:
            woken.set()
            with suppress(BookKeeperError, OSError):
                sleeper.result(60)

        try:
            run(path, ids, SteppedDisk(wake, go_on), batch=1)
        finally:
            go_on()


def test_what_is_there_says_what_can_be_added(tmp_path: Path) -> None:
    path = tmp_path / "out"
    run(path, [1, 2])
    for source, layout, message in [
        (
            ExportSource("cluster-2"),
            LAYOUT,
            "export of ledgers of the cluster cluster-1, not of ledgers of .* cluster-2",
        ),
        (ExportSource("cluster-1", "orders", "u1"), LAYOUT, r"not of the log orders \(u1\)"),
        (SOURCE, ExportLayout("csv", "base64", "day"), "holds json files .*, not csv files with payloads as base64"),
        (SOURCE, ExportLayout("json"), "partitioned by day, not json files with payloads as bytes: take the same"),
    ]:
        with pytest.raises(ConfigError, match=message):
            ExportDirectory.open(path, source, layout)
    check_whole(path, [1, 2])


def test_a_directory_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").touch()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "_SUCCESS").touch()
    (tmp_path / "file").touch()
    for name, message in [
        ("mine", "not empty, and holds no export"),
        ("old", r"without a manifest, .*; export everything into another directory \[file .*old\]"),
        ("file", "a file has the name of the export's directory"),
    ]:
        with pytest.raises(ConfigError, match=message):
            ExportDirectory.open(tmp_path / name, SOURCE, LAYOUT)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "file", "mine", "mine/precious", "old", "old/_SUCCESS",
    ]  # fmt: skip


class CopyingDisk(Disk):
    """As file systems over object stores are: a rename is a copy, and then the old name goes, or doesn't."""

    def rename(self, source: Path, target: Path) -> None:
        shutil.copyfile(source, target)


class RefusingDisk(Disk):
    def rename(self, source: Path, target: Path) -> None:
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))


class ObjectStoreDisk(Disk):
    def kind(self, path: Path) -> str:
        return "fuse.s3fs"


@pytest.mark.parametrize("disk", [CopyingDisk(), RefusingDisk(), ObjectStoreDisk()])
def test_a_file_system_without_an_atomic_rename_is_refused(tmp_path: Path, disk: Disk) -> None:
    with pytest.raises(ConfigError, match=r"rename .*\[file .*out\]"):
        run(tmp_path / "out", [1], disk)
    assert seen(tmp_path / "out") == []
    run(tmp_path / "out", [1])
    check_whole(tmp_path / "out", [1])


def test_a_newer_manifest_is_refused(tmp_path: Path) -> None:
    run(tmp_path, [1])
    manifest = manifest_of(tmp_path)
    newer = manifest.read_bytes().partition(b" ")[2].partition(b"\n")[0].replace(b'"version":1', b'"version":2')
    from crc32c import crc32c

    manifest.write_bytes(b"%08x %s\n" % (crc32c(newer), newer))
    with pytest.raises(UnsupportedVersionError, match="format version 2, this bkpy reads up to 1: upgrade it"):
        ExportDirectory.open(tmp_path, SOURCE, LAYOUT)


def test_the_format_of_the_manifest_is_what_was_specified() -> None:
    stored = EXPORT.read_bytes()
    assert export_manifest() == stored, "the format has changed: it needs another version"
    state = decode(stored, "golden")
    assert state is not None
    assert (state.source, state.layout) == (
        ExportSource("3a3a-instance", "orders", "00112233"),
        ExportLayout("parquet", None, "day"),
    )
    assert (str(state.done), state.next_batch, state.totals) == ("7,9-2999", 2, Totals(2992, 347_072, 0, 3))
    assert state.moves is not None
    assert state.moves.files[0][1] == "day=2026-11-22/part-00000001-00000-c000.snappy.parquet"


def test_a_damaged_manifest_is_an_error_and_a_torn_end_is_none(tmp_path: Path) -> None:
    directory = ExportDirectory.open(tmp_path, SOURCE, LAYOUT)
    for ids in ([1, 2], [3]):
        staging = directory.begin(Runs.of(ids))
        stage(staging, ids)
        directory.commit(staging, Runs.of(ids), rows=len(ids), bytes=0, ledgers=len(ids))
    data = manifest_of(tmp_path).read_bytes()
    whole = decode(data, "m")
    lengths = [len(line) + 1 for line in data.splitlines()]
    assert len(lengths) == 7
    assert decode(data[: lengths[0] - 1], "m") is None
    states = set()
    for length in range(lengths[0], len(data) + 1):
        state = decode(data[:length], "m")
        assert state is not None
        states.add((str(state.done), state.moves is None))
    assert states == {("", True), ("1-2", False), ("1-2", True), ("1-3", False), ("1-3", True)}
    assert decode(data + b"00", "m") == whole
    for i in range(sum(lengths[:-1]) - 1):
        flipped = bytearray(data)
        flipped[i] ^= 1
        with pytest.raises((CorruptDataError, UnsupportedVersionError)):
            decode(bytes(flipped), "m")
    directory.close()


def test_a_manifest_stays_small_and_is_seldom_written_anew(tmp_path: Path) -> None:
    """A year of rounds costs little each, and what they leave is one line."""

    class Counting(Disk):
        created = written = 0

        def create(self, path: Path, data: bytes) -> int:
            self.created += 1
            self.written += len(data)
            return super().create(path, data)

    disk = Counting()
    directory = ExportDirectory.open(tmp_path, SOURCE, LAYOUT, disk)
    before = disk.created
    for i in range(1000):
        staging = directory.begin(Runs.of([i]))
        staging.mkdir()
        directory.commit(staging, Runs.of([i]), rows=1, bytes=0, ledgers=1)
        assert manifest_of(tmp_path).stat().st_size < 70_000
    directory.close()
    assert disk.created - before < 10
    state = look(tmp_path, SOURCE, LAYOUT)
    assert str(state.done) == "0-999"
    assert len(first_line(state)) < 300


def test_gaps_of_a_log_are_kept(tmp_path: Path) -> None:
    """In the line of their batch, and in the first line of the next manifest."""
    gap = Runs.between(2, 10**12)
    directory = ExportDirectory.open(tmp_path, SOURCE, LAYOUT)
    for ids, gaps in ((Runs.between(0, 10**12 + 1), gap), (Runs.between(10**12 + 1, 10**12 + 2), NOTHING)):
        staging = directory.begin(ids)
        staging.mkdir()
        directory.commit(staging, ids, rows=3, bytes=0, ledgers=0, gaps=gaps)
        assert look(tmp_path, SOURCE, LAYOUT).gaps == gap
    directory.close()
    ExportDirectory.open(tmp_path, SOURCE, LAYOUT).close()
    assert b"gaps" in manifest_of(tmp_path).read_bytes().partition(b"\n")[0]
    assert look(tmp_path, SOURCE, LAYOUT).gaps == gap


def test_runs_of_any_length_are_compared_by_their_ends() -> None:
    most = Runs.spans([(10**12, 10**15), (0, 5), (3, 10**9), (7, 7)])
    assert most == Runs.between(0, 10**9) | Runs.between(10**12, 10**15)
    assert most >= Runs.between(1, 10**9) | Runs.of([10**12])
    assert not most >= Runs.between(10**9 - 1, 10**9 + 1)
    assert not most >= Runs.of([10**9])
    assert most.clipped(10**9 - 1) == Runs.of([10**9 - 1]) | Runs.between(10**12, 10**15)
    assert most.clipped(10**16) == NOTHING


def test_runs_are_sets(tmp_path: Path) -> None:
    numbers = range(7)
    subsets = [set(some) for n in range(len(numbers) + 1) for some in itertools.combinations(numbers, n)]
    for some in subsets:
        runs = Runs.of(some)
        assert {i for i in numbers if i in runs} == some
        assert (len(runs), Runs.parse(str(runs))) == (len(some), runs)
        for first, end in itertools.combinations(range(8), 2):
            missing = [i for start, stop in runs.missing(first, end) for i in range(start, stop)]
            assert missing == [i for i in range(first, end) if i not in some]
        for others in subsets[::5]:
            assert runs | Runs.of(others) == Runs.of(some | others)
            assert (runs >= Runs.of(others)) == (some >= others)
    for text in ("1-0", "3,1", "1,2", "x", "1-", ",", "1-3,2"):
        with pytest.raises(ValueError, match=r"run|touch"):
            Runs.parse(text)
