"""`bkpy inspect`: shows the files of a bookie, running or stopped: what is damaged, where, and what to do."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, NamedTuple

import click

from bkpy.cli.arguments import NewPath, ledger_argument, one_ledger
from bkpy.cli.endings import TERMINATED
from bkpy.cli.output.json import json_option, print_json, print_json_line
from bkpy.cli.output.text import say
from bkpy.cli.running import interruptible, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from bkpy.protocol.restore.salvaging import LedgerEnd
    from bkpy.runtime.interfaces import Files, OrderedStore
    from bkpy.storage.journal.format import Mark
    from bkpy.storage.tools.inspect.entry_log import Living
    from bkpy.storage.tools.inspect.finding import Finding
    from bkpy.storage.tools.salvage import Found as Salvaged

_JOURNAL_FILE = ".txn"
_LOG_FILE = ".log"
# What a program does to itself. Others come from outside, as SIGKILL where memory is short, and say nothing of a file.
_CRASHES = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE))


class Target(NamedTuple):
    """The bookie's directories, and the one directory or file among them to inspect."""

    journals: tuple[str, ...]
    ledgers: tuple[str, ...]
    only: str  # a directory, or empty
    file: str  # a file's name in it, or empty


@click.group()
def inspect() -> None:
    """Inspect a bookie's files, whether it runs or not. Changes nothing.

    WHERE is a bookie's configuration file, one of its directories, or one journal file or entry log. For damage, the
    command prints its place and what to do, and goes on behind it. Exit status: 0 if all is sound, 1 if there is
    damage.
    """


_where = click.argument("where", metavar="WHERE", type=click.Path())
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
_I64 = click.IntRange(0, (1 << 63) - 1)  # places in files
_limit = click.option("--limit", type=click.IntRange(0), default=1000, show_default=True, help="Findings to show.")
_ledger = click.option("--ledger", "ledger_id", callback=one_ledger, metavar="ID", help="Show only this ledger.")
_offset = click.option(
    "--from", "offset", type=_I64, default=0, metavar="OFFSET", help="Begin at this offset of the file WHERE."
)


@inspect.command()
@_where
@_ledger
@_offset
@_limit
@_json
def journal(where: str, ledger_id: int | None, offset: int, limit: int, as_json: bool) -> int:
    """Show journal files, commit frames and their records, and where the journal ends at present."""
    target = _target(where, offset)

    def findings(bookie: _Bookie) -> Iterator[Finding]:
        from bkpy.storage.journal.format import file_id_of
        from bkpy.storage.tools.inspect.journal import JournalInspection

        for directory, number in _journals(target):
            yield from JournalInspection(
                bookie.files,
                directory,
                number,
                read_bytes=bookie.read_bytes,
                mark=bookie.mark(number),
                ledger=ledger_id,
                only=file_id_of(target.file),
                offset=offset,
            ).run()

    return _tell(target, findings, limit, as_json)


@inspect.command("entry-log")
@_where
@_ledger
@_offset
@_limit
@_json
def entry_log(where: str, ledger_id: int | None, offset: int, limit: int, as_json: bool) -> int:
    """Show entry logs and their blocks, and verify all checksums."""
    target = _target(where, offset)

    def findings(bookie: _Bookie) -> Iterator[Finding]:
        from bkpy.storage.entry_log.entry_log import KEPT, log_id_of
        from bkpy.storage.tools.inspect.entry_log import LogInspection
        from bkpy.storage.tools.inspect.stored import inspect_kept_file, missing_logs

        for directory in _ledgers(target):
            names = [target.file] if target.file else bookie.files.listdir(directory)
            for name in names:
                log_id = log_id_of(name)
                if log_id is None:
                    continue
                if log_id & KEPT:
                    store = bookie.indexes.get(directory)
                    yield from inspect_kept_file(bookie.files, directory, name, store, ledger=ledger_id, offset=offset)
                else:
                    path = f"{directory}/{name}"
                    living = bookie.living(directory)
                    yield from LogInspection(
                        bookie.files, path, living, read_bytes=bookie.read_bytes, ledger=ledger_id, offset=offset
                    ).run()
            if not target.file and (index := bookie.indexes.get(directory)) is not None:
                yield from missing_logs(bookie.files, directory, index, ledger=ledger_id)

    return _tell(target, findings, limit, as_json)


@inspect.command()
@_where
@_ledger
@_limit
@_json
def index(where: str, ledger_id: int | None, limit: int, as_json: bool) -> int:
    """Show the rows of the index, and whether its counts and sums match them."""
    target = _target(where)

    def findings(bookie: _Bookie) -> Iterator[Finding]:
        from bkpy.storage.tools.inspect.index import IndexInspection

        for directory in _ledgers(target):
            store = bookie.indexes.get(directory)
            if store is not None:
                with store.read() as txn:
                    yield from IndexInspection(directory, txn, ledger=ledger_id).run()

    return _tell(target, findings, limit, as_json)


@inspect.command()
@_where
@ledger_argument
@_limit
@_json
def ledger(where: str, ledger_id: int, limit: int, as_json: bool) -> int:
    """Show all that the bookie holds of one ledger: state, blocks, the journal behind the marks, gaps in its ids."""
    target = _target(where)

    def findings(bookie: _Bookie) -> Iterator[Finding]:
        from bkpy.storage.tools.inspect.ledger import LedgerInspection

        yield from LedgerInspection(
            bookie.files,
            bookie.indexes,
            target.journals,
            ledger_id,
            read_bytes=bookie.read_bytes,
            ranges_max=limit,
            unopened=len(target.ledgers) - len(bookie.indexes),
        ).run()

    return _tell(target, findings, limit, as_json)


@inspect.command()
@_where
@_limit
@_json
def marks(where: str, limit: int, as_json: bool) -> int:
    """Show how far each ledger directory has taken in each journal, and what a start would replay."""
    target = _target(where)

    def findings(bookie: _Bookie) -> Iterator[Finding]:
        from bkpy.storage.tools.inspect.marks import inspect_marks

        yield from inspect_marks(bookie.files, bookie.indexes, target.journals, read_bytes=bookie.read_bytes)

    return _tell(target, findings, limit, as_json)


@inspect.command()
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False))
@click.option("--to", "path", metavar="FILE", required=True, type=NewPath(dir_okay=False), help="The new file.")
@click.option(
    "--backup", metavar="FILE", type=click.Path(exists=True, dir_okay=False), help="A backup of the cluster's metadata."
)
@json_option
def salvage(directories: tuple[str, ...], path: str, backup: str | None, as_json: bool) -> None:
    """Write the entries that stopped bookies' directories hold to FILE, with what is certain of each.

    DIR are journal and ledger directories, of as many bookies as there are. Needs no ZooKeeper. A backup tells where
    closed ledgers end. It makes no cluster of what it finds. See docs/how-to/backup.md.
    """
    with interruptible("no file was written"):
        found = _salvaged([os.path.abspath(one) for one in directories], os.path.abspath(path), backup)
    if as_json:
        print_json(found._asdict())
        return
    click.echo(f"{path}: {found.entries:,} entries of {found.ledgers:,} ledgers")
    for certain, count in found.certain.items():
        click.echo(f"  {count:,} {certain}")
    if found.differ:
        click.echo(f"  {found.differ:,} have copies that differ: all are in the file")
    if found.damages:
        click.echo(f"  {found.damages:,} places are damaged: they are at the end of the file")


def _salvaged(directories: list[str], path: str, backup: str | None) -> Salvaged:
    import time

    from bkpy.cli.output.progress import progress
    from bkpy.runtime.ordered_store import LmdbStores
    from bkpy.runtime.system import RealFiles
    from bkpy.storage.tools.salvage import salvage as write

    ends: dict[int, LedgerEnd] = {}
    checksum = ""
    if backup is not None:
        ends, checksum = run(_ledgers_in(os.path.abspath(backup)))
    with progress(unit="files") as bar:
        task = bar.add_task("salvage", total=None)
        return write(
            RealFiles(),
            LmdbStores(),
            directories,
            path,
            time_ms=int(time.time() * 1000),
            ends=ends,
            backup=checksum,
            progress=lambda _: bar.advance(task),
        )


async def _ledgers_in(path: str) -> tuple[dict[int, LedgerEnd], str]:
    """The ledgers' ends in a sound backup, and its checksum."""
    from bkpy.metadata.backup.backup_file import reading
    from bkpy.metadata.ledgers.layout import layout_named
    from bkpy.protocol.restore.salvaging import end_in
    from bkpy.runtime.system import RealFiles

    ends: dict[int, LedgerEnd] = {}
    async with reading(RealFiles(), path) as reader:
        layout = layout_named((await reader.header()).layout)
        async with contextlib.aclosing(reader.nodes()) as nodes:
            async for node in nodes:
                ledger_id = layout.id_of(node.path)
                if ledger_id is not None and (end := end_in(ledger_id, node.data)) is not None:
                    ends[ledger_id] = end
        assert reader.end is not None
        return ends, reader.end.checksum


# --- what is inspected ------------------------------------------------------------------------------------------------


def _target(where: str, offset: int = 0) -> Target:
    """The bookie that `where` belongs to, by its settings or by the cookie in one of its directories."""
    path = os.path.abspath(where)
    if not os.path.exists(path):
        raise click.ClickException(f"{path}: there is no such file or directory")
    if os.path.isfile(path) and not path.endswith((_JOURNAL_FILE, _LOG_FILE)):
        from bkpy.config.loading import load_bookie_settings

        settings = load_bookie_settings(path, os.environ, {}, say)
        target = Target(tuple(settings.journal_directories), tuple(settings.ledger_directories), "", "")
    else:
        directory, file = (path, "") if os.path.isdir(path) else os.path.split(path)
        target = _of_directory(directory)._replace(only=directory, file=file)
    if offset and not target.file:
        raise click.UsageError("--from goes with one file, a journal file or an entry log")
    return target


def _of_directory(directory: str) -> Target:
    """The directories in this one's cookie. Without a cookie, the kinds of files in it decide."""
    from bkpy.runtime.system import RealFiles
    from bkpy.storage.cookies import look_for_cookie
    from bkpy.storage.file_names import INDEX_NAME, number_of

    found = look_for_cookie(RealFiles(), directory).cookie
    if found is not None and directory in found.paths:
        return Target(found.journal_directories, tuple(d.path for d in found.ledger_directories), "", "")
    names = os.listdir(directory)
    journals = (directory,) if any(name.endswith(_JOURNAL_FILE) for name in names) else ()
    # By its number: a bookie's own log may lie beside its directories.
    is_ledgers = INDEX_NAME in names or any(number_of(name, _LOG_FILE) is not None for name in names)
    if not (journals or is_ledgers):
        what = "this is no directory of a bookie: it has no cookie, no index, no journal files and no entry logs"
        todo = "name the bookie's configuration file or one of its directories, or mount its disk"
        raise click.ClickException(f"{directory}: {what}; {todo}")
    return Target(journals, (directory,) if is_ledgers else (), "", "")


def _journals(target: Target) -> list[tuple[str, int | None]]:
    """(directory, number) of the journals to inspect; the number is None where no cookie gives it."""
    if target.only and target.only not in target.ledgers:
        number = target.journals.index(target.only) if len(target.journals) > 1 else None
        return [(target.only, number)]
    return [(directory, number) for number, directory in enumerate(target.journals)]


def _ledgers(target: Target) -> tuple[str, ...]:
    return (target.only,) if target.only in target.ledgers else target.ledgers


class _Bookie:
    """The files and indexes of a target, opened to be read."""

    def __init__(self, files: Files, indexes: Mapping[str, OrderedStore], read_bytes: int) -> None:
        self.files = files
        self.indexes = indexes
        self.read_bytes = read_bytes

    def mark(self, number: int | None) -> Mark | None:
        from bkpy.storage.tools.inspect.marks import lowest_mark, read_marks

        return None if number is None else lowest_mark(read_marks(self.indexes)[0], number)

    def living(self, directory: str) -> Living | None:
        """Looks up the live entries in a part of a log, by the rows of the index; None if there is no index."""
        from bkpy.storage.tools.inspect.index import living_at

        store = self.indexes.get(directory)
        if store is None:
            return None

        def look(log_id: int, start: int, end: int) -> list[tuple[int, int, int]]:
            with store.read() as txn:
                return living_at(txn, log_id, start, end)

        return look


@contextlib.contextmanager
def _opened(target: Target) -> Iterator[tuple[_Bookie, list[Finding]]]:
    """The bookie, and what is wrong with indexes that can't be opened."""
    from bkpy.config.bookie import BookieSettings
    from bkpy.runtime.ordered_store import LmdbStores
    from bkpy.runtime.system import RealFiles
    from bkpy.storage.file_names import INDEX_NAME
    from bkpy.storage.tools.inspect.finding import damage

    fields = BookieSettings.model_fields
    problems: list[Finding] = []
    indexes: dict[str, OrderedStore] = {}
    with contextlib.ExitStack() as held:
        for directory in target.ledgers:
            path = f"{directory}/{INDEX_NAME}"
            try:
                store = LmdbStores().open(path, bytes_max=fields["index_bytes_max"].default, read_only=True)
            except OSError as e:
                advice = (
                    "mount its disk, restore it, or `bkpy bookie rebuild-index`; the bookie doesn't start without it"
                )
                problems.append(damage(path, None, f"the index can't be opened: {e.strerror or e}", advice))
                continue
            held.callback(store.close)
            indexes[directory] = store
        yield _Bookie(RealFiles(), indexes, fields["journal_read_bytes"].default), problems


# --- output -----------------------------------------------------------------------------------------------------------


def _tell(target: Target, findings: Callable[[_Bookie], Iterator[Finding]], limit: int, as_json: bool) -> int:
    """Print findings at once, and return the exit status. A child does it: a damaged file may crash LMDB."""
    sys.stdout.flush()
    parent = os.getpid()
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            return os.waitstatus_to_exitcode(status)
        from bkpy.local.process import how_it_ended
        from bkpy.storage.tools.inspect.finding import COPIES, damage

        number = os.WTERMSIG(status)
        if number not in _CRASHES:
            say(
                f"bkpy: the process that inspects {how_it_ended(-number)}, and what it had yet to read is not inspected"
            )
            return 128 + number
        name = signal.Signals(number).name
        what = f"the library that reads the index ended with {name}: the file of one of these is damaged"
        advice = f"{COPIES}; with the bookie stopped, `bkpy bookie rebuild-index` rebuilds it from the entry logs"
        printer = _Printer(1, as_json)
        printer.print(damage(", ".join(target.ledgers), None, what, advice))
        return printer.end()
    printer = _Printer(limit, as_json)
    with _opened(target) as (bookie, problems):
        for problem in problems:
            printer.print(problem)
        try:
            for finding in findings(bookie):
                if os.getppid() != parent:  # the parent was killed: don't hold the index's snapshot any longer
                    return TERMINATED
                printer.print(finding)
        except OSError as e:
            from bkpy.storage.tools.inspect.finding import COPIES, damage

            advice = (
                f"{COPIES}; with the bookie stopped, `bkpy bookie check` finds out whether the index must be rebuilt"
            )
            printer.print(damage(", ".join(target.ledgers), None, f"failed to read on: {e}", advice))
    return printer.end()


class _Printer:
    """Prints up to `limit` findings, and as many places of damage, and counts all."""

    def __init__(self, limit: int, as_json: bool) -> None:
        self._limit = limit
        self._as_json = as_json
        self._found = 0
        self._shown = 0
        self._hidden = 0
        self._damages = 0
        self._damages_shown = 0
        self._path = ""

    def print(self, finding: Finding) -> None:
        self._found += 1
        if finding.damage:
            self._damages += 1
            if self._damages_shown >= max(self._limit, 1):
                self._hidden += 1
                return
            self._damages_shown += 1
        elif finding.kind != "end":
            if self._shown >= self._limit:
                self._hidden += 1
                return
            self._shown += 1
        click.echo(self._json(finding) if self._as_json else self._text(finding))

    def end(self) -> int:
        if self._as_json:
            print_json_line({"kind": "summary", "findings": self._found, "damages": self._damages})
        elif self._hidden:
            click.echo(f"{self._found} findings; not all are shown (--limit)")
        if self._damages:
            click.echo(f"bkpy: damage was found in {self._damages} places", err=True)
            return 1
        return 0

    @staticmethod
    def _json(finding: Finding) -> str:
        place = {"kind": finding.kind, "path": finding.path or None, "offset": finding.offset}
        wrong = {"damage": finding.damage, "advice": finding.advice} if finding.damage else {}
        return json.dumps({**place, **finding.facts, **wrong})

    def _text(self, finding: Finding) -> str:
        heading = ""
        if finding.path and finding.path != self._path:
            self._path = finding.path
            heading = f"{finding.path}\n"
        offset = "" if finding.offset is None else str(finding.offset)
        named = {name: _plain(value) for name, value in finding.facts.items()}
        facts = "  ".join(value if name == finding.kind else f"{name} {value}" for name, value in named.items())
        if finding.damage:
            line = f"{offset:>12}  DAMAGE: {finding.damage}" + (f" ({facts})" if facts else "")
            return f"{heading}{line}\n{'':>12}  -> {finding.advice}"
        kind = f"{finding.kind:<10}  "
        return f"{heading}{offset:>12}  {kind}{facts}".rstrip()


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_plain, value)) or "none"
    if isinstance(value, dict):
        return "/".join(_plain(part) for part in value.values())
    return "-" if value is None else str(value)
