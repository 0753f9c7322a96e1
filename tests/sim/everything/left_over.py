"""What must not be left over in the end: nodes that nobody needs, files that no index knows, damage that nobody did.

Nodes are looked at until all is well, for a session takes a while to end. Directories are looked at when their bookies
have been stopped, by what `bkpy bookie check` does.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from bkpy.metadata import paths
from bkpy.metadata.ledgers.layout import LONG_HIERARCHICAL
from bkpy.storage.entry_log.entry_log import log_id_of
from bkpy.storage.file_names import INDEX_NAME, LOCK_NAME, OLD_INDEX_NAME, SCRUB_NAME
from bkpy.storage.index.index import log_rows
from bkpy.storage.journal.format import file_id_of
from bkpy.storage.tools.check.check import check_bookie
from tests.sim.cluster import ROOT
from tests.sim.coverage_marks import DIRECTORIES_CHECKED
from tests.sim.world import HostDied

from .oracle import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bkpy.storage.tools.check.defects import Defect
    from tests.sim.cluster import Bookie

    from .oracle import Oracle
    from .stage import Stage

_BROKEN = ".broken"  # a copy of a torn frame, kept for people
_ALWAYS = (
    *("", paths.LAYOUT, paths.INSTANCE_ID, paths.AVAILABLE, paths.READ_ONLY, paths.COOKIES, paths.RETIRED),
    *("underreplication", paths.LOCKS, paths.MARKS, paths.MARKS_NEWS, paths.MANUAL_MOVES, paths.DRAINING, paths.AUDIT),
    *(paths.CHECKS, paths.WORKERS, paths.ELECTION, paths.LOGS, paths.LOGS_DELETED),
    *(LONG_HIERARCHICAL.id_nodes[0], f"{LONG_HIERARCHICAL.id_nodes[0]}/HOB-.*"),
    *(r"\d{3}", r"\d{3}/\d{4}", r"\d{3}/\d{4}/\d{4}", r"\d{3}/\d{4}/\d{4}/\d{4}"),  # which hold, or held, ledgers
)
_LEDGER = r"\d{3}/\d{4}/\d{4}/\d{4}/L\d{4}"
_BELOW_LOGS = r"(/[^/]+(/(consumers|pages)(/[^/]+)?)?)?"


class Nodes:
    """Which nodes may be there in the end."""

    def __init__(self, stage: Stage) -> None:
        oracle = stage.oracle
        every = {bookie.settings.bookie_id for bookie in stage.cluster.bookies}
        allowed = [*_ALWAYS, _LEDGER]
        for name in sorted(every):
            one = re.escape(name)
            if name not in oracle.gone:
                allowed += [f"{paths.AVAILABLE}/{one}", f"{paths.READ_ONLY}/{one}"]
            if name not in oracle.retired:
                # What was to leave may still be on its way, with nobody to decommission it.
                allowed += [f"{paths.COOKIES}/{one}", f"{paths.DRAINING}/{one}(/[^/]+)?"]
            if name in oracle.retired | oracle.formatted:
                allowed.append(f"{paths.RETIRED}/{one}")
        if stage.logs:
            allowed += [f"{paths.LOGS}/{re.escape(name)}{_BELOW_LOGS}" for name in stage.logs]
        doomed = [actor.options["log"] for actor in stage.schedule.actors if actor.kind == "doomed log"]
        if not stage.workers:  # a deletion that failed half-way is for an auditor to end
            allowed += [f"{paths.LOGS}/{name}{_BELOW_LOGS}" for name in doomed]
        if stage.logs or doomed:
            allowed.append(f"{paths.LOGS_DELETED}/[^/]+")  # kept while ledgers of a deleted log may turn up
        if any(actor.kind == "import" for actor in stage.schedule.actors):
            allowed.append(f"{paths.IMPORTS}(/[^/]+)?")  # the locks are below
        allowed += [f"{paths.WORKERS}/[^/]+", f"{paths.ELECTION}/[^/]+"]
        # Levels above marks stay; marks themselves do where nobody works them off.
        allowed.append(f"{paths.MARKS}/[^L]*" if stage.workers else f"{paths.MARKS}/.*")
        for one in oracle.stuck():  # again and again somebody tries
            allowed.append(f"{LONG_HIERARCHICAL.path_of(paths.MARKS, one)}(/[^/]+)?")
            allowed.append(f"{paths.LOCKS}/L{one:019d}(-[^/]+)?")
        self._allowed = re.compile("|".join(f"({one})" for one in allowed))

    def left(self, oracle: Oracle) -> list[str]:
        """The nodes that nobody needs."""
        every = oracle.world.metadata.paths
        found = [path.removeprefix(f"{ROOT}/") for path in every if path.startswith(f"{ROOT}/")]
        left = [path for path in found if not self._allowed.fullmatch(path)]
        for folder in (paths.WORKERS, paths.ELECTION):
            owners: set[int] = set()
            for path in found:
                if path.startswith(f"{folder}/"):
                    owner = oracle.world.metadata.node(f"{ROOT}/{path}").owner
                    left += [path] if owner in owners else []
                    owners.add(owner)
        return left


async def check_directories(stage: Stage) -> None:
    """Stop the bookies, and look at what they leave behind."""
    for bookie in stage.cluster.bookies:
        if bookie.host.up and not stage.is_gone(bookie):
            try:
                await bookie.stop()
            except HostDied:
                continue  # a disk that was broken has told so only now
            bookie.host.boot()
            try:
                rotten = bookie.settings.bookie_id in stage.oracle.rotten
                if left := bookie.host.do(lambda: [*_left_by(bookie, rotten=rotten)]):  # noqa: B023 - it is called at once
                    raise Violation("no file left over", f"{bookie.host.name}: {'; '.join(left)}", bookie.tree)
            finally:
                bookie.host.crash()
            stage.world.marks[DIRECTORIES_CHECKED] += 1


def _left_by(bookie: Bookie, *, rotten: bool) -> Iterable[str]:
    """What is wrong in the directories of a bookie that is stopped."""
    found: list[Defect] = []
    check_bookie(bookie.settings, bookie.host.runtime, running=False, found=found.append, progress=lambda count: None)
    if not rotten:
        yield from (f"{defect.path} at {defect.offset}: {defect.what}" for defect in found)
    files = bookie.host.disk
    for directory in bookie.settings.journal_directories:
        for name in files.listdir(directory):
            if name not in ("cookie.json", LOCK_NAME) and file_id_of(name.removesuffix(_BROKEN)) is None:
                yield f"{directory}/{name}"
    for directory in bookie.settings.ledger_directories:
        store = bookie.host.runtime.store.open(f"{directory}/{INDEX_NAME}", read_only=True)
        try:
            with store.read() as txn:
                known = set(log_rows(txn))
        finally:
            store.close()
        for name in files.listdir(directory):
            log_id = log_id_of(name)
            if name.startswith(OLD_INDEX_NAME):
                continue  # kept for people
            if log_id not in known and name not in ("cookie.json", LOCK_NAME, INDEX_NAME, SCRUB_NAME):
                yield f"{directory}/{name}"
