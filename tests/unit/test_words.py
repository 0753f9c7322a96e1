"""The source and the documentation use the field's terms: words that made strangers read twice don't come back."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

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

_PATTERNS = [re.compile(pattern) for pattern in REFUSED]  # of small letters
_CLASS = re.compile(r"^ *class (\w+)", re.M)


@functools.cache
def texts() -> dict[str, str]:
    """The source and the documentation, without the names that stay, and those of tests."""
    found = {}
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    for path in sorted([*(ROOT / "src").rglob("*.py"), *pages]):
        name = str(path.relative_to(ROOT))
        if name in EXEMPT:
            continue
        text = path.read_text(encoding="utf-8")
        for quoted in QUOTED:
            text = text.replace(quoted, "")
        found[name] = re.sub(r"`[^`\n]*test_[^`\n]*`", "", text) if path.suffix == ".md" else text
    return found


@pytest.mark.thorough
def test_no_line_has_an_old_word() -> None:
    found = []
    for name, text in texts().items():
        small = text.lower()
        for pattern in _PATTERNS:  # one by one: most begin with letters, which are looked for at once
            found += [f"{name}:{small.count(chr(10), 0, m.start()) + 1}: {m.group(0)}" for m in pattern.finditer(small)]
    if found:
        pytest.fail("\n".join(found), pytrace=False)


def test_no_class_has_an_old_name() -> None:
    found = {name: set(_CLASS.findall(text)) & CLASSES for name, text in texts().items()}
    assert not {name: old for name, old in found.items() if old}


@pytest.mark.parametrize(
    "sentence", ["whoever flushed too late heard", "the marks that lst lacks", "is told", "It owes"]
)
def test_old_words_are_found(sentence: str) -> None:
    assert any(pattern.search(sentence.lower()) for pattern in _PATTERNS)


def test_what_is_exempt_is_there() -> None:
    assert all((ROOT / name).exists() for name in EXEMPT)
