"""The source and the documentation use the field's terms: words that made strangers read twice don't come back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]

# What is refused, and what to write instead.
REFUSED = {
    r"(?<![a-z])(un)?told(?![a-z])": "status, report; is notified of; reports",
    r"doubted": "escalate_unknown",
    r"overtaken": "superseded",
    r"(?<![a-z])mend(s|ed|er|ers|ing|able)?(?![a-z])": "repair",
    r"(?<![a-z])ow(ed|es)(?![a-z])": "unacked, unacknowledged",
    r"doomed|condemn": "pending_delete, tombstone",
    r"by[ _-]hand(?![a-z])": "manual",
    r"those (that|who)": "the noun",
    r"what is to be": "the noun",
    r"(?<![a-z])lack(s|ing|ed)?(?![a-z])": "missing, misses",
    r"(?<![a-z])bur(y|ied|ies)(?![a-z])": "tombstone",
    r"upkeep|companion": "replication context, background service",
    r"newcomer|visitors": "new_connection, HttpConnections",
    r"most_absent": "suspended",
    r"(?<![a-z_])lst(?![a-z_])": "log_list",
    r"looks?(ed)? after": "maintains",
    r"made anew|beg[ia]ns? anew": "re-replicated, restarts, resets",
    r"(gives?|given|gave) back": "reclaims, releases",
    r"hea(rs?|rd) of": "is notified of",
    r"(?<![a-z])heeds?(?![a-z])": "handles",
    r"(is|are) to go\b": "draining",
    r"falls? short": "under-replicated",
    r"no more entries": "is read-only",
    r"spare (cop|entr)|(?<![a-z])gc_spare": "over-replicated copy",
    r"(?<![a-z])whoever": "clients, callers, a reader",
    r"(?<![a-z])(launch|crowded|owed|mend_pause)_": "the names of today",
}
CLASSES = {
    *("Told", "Said", "How", "Way", "Word", "Act", "Course", "Duty", "Fate", "Look", "Looked", "Sight", "Sighting"),
    *("Seen", "Lookout", "Need", "Objection", "Obstacle", "Belongings", "ListSays", "Then", "Tally", "Verdict"),
    *("Visitors", "Upkeep", "Companion"),
}

# Stored names, wire names, metrics and old public names, which stay as they are.
QUOTED = (
    '"doomed"',
    "`doomed`",
    '"untold"',
    "`untold`",
    '"mended"',
    "`mended`",
    "bkpy_integrity_mended",
    "bkpy_auditor_most_absent",
    "`_mended_total`",
    '"most_absent"',
    "`most_absent`",
    "`upkeep`",
    '"upkeep"',
    "def upkeep(",
    "    doomed     ",  # the table of a log's stored fields
)
# Whole files that are about old names.
EXEMPT = {
    "src/bkpy/config/renamed.py": "maps old names to those of today",
    "docs/explanation/scenarios.md": "is made of the tests' names",
}

_RX = re.compile("|".join(f"(?:{pattern})" for pattern in REFUSED), re.IGNORECASE)


def lines() -> Iterator[tuple[str, int, str]]:
    """Each line of the source and of the documentation, without the names that stay, and those of tests."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    for path in sorted([*(ROOT / "src").rglob("*.py"), *pages]):
        name = str(path.relative_to(ROOT))
        if name in EXEMPT:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            line = re.sub("|".join(map(re.escape, QUOTED)), "", line)
            yield name, number, re.sub(r"`[^`]*test_[^`]*`", "", line) if path.suffix == ".md" else line


def test_no_line_has_an_old_word() -> None:
    found = [f"{name}:{number}: {m.group(0)}" for name, number, line in lines() if (m := _RX.search(line))]
    if found:
        pytest.fail("\n".join(found), pytrace=False)


def test_no_class_has_an_old_name() -> None:
    found = [
        f"{name}:{number}: {m.group(1)}"
        for name, number, line in lines()
        if (m := re.match(r"\s*class (\w+)", line)) and m.group(1) in CLASSES
    ]
    assert not found


@pytest.mark.parametrize(
    "sentence", ["whoever flushed too late heard", "the marks that lst lacks", "is told", "It owes"]
)
def test_old_words_are_found(sentence: str) -> None:
    assert _RX.search(sentence)


def test_what_is_exempt_is_there() -> None:
    assert all((ROOT / name).exists() for name in EXEMPT)
