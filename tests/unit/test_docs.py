"""The documentation names only what is there: links, files, tests and rules resolve inside the repository."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """The fragments that the page's headings can be linked to by."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_links_resolve() -> None:
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            if target.startswith(("http://", "https://", "mailto:")):
                continue
            path, _, fragment = re.sub(r"\s+", " ", target).partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists() or (fragment and file.suffix == ".md" and fragment not in anchors(file)):
                broken.append((name_of(page), target))
    assert not broken


def test_every_rule_that_the_source_cites_is_explained() -> None:
    explained = set(
        re.findall(r"^\| (S\d+) \|", (ROOT / "docs" / "explanation" / "storage.md").read_text(), re.MULTILINE)
    )
    cited = {rule for path in SOURCES for rule in re.findall(r"\bS\d+\b", path.read_text(encoding="utf-8"))}
    assert cited
    assert cited <= explained


def test_every_page_that_the_source_cites_is_there() -> None:
    cited = {
        (name_of(path), page)
        for path in SOURCES
        for page in re.findall(r"\bdocs/[\w/.-]+\w", path.read_text(encoding="utf-8"))
    }
    assert cited
    assert not [where for where in cited if not (ROOT / where[1]).exists()]


def test_the_tests_that_hold_the_rules_of_storage_are_there() -> None:
    named = re.findall(r"`(test_\w+\.py)?::(test_\w+)`", (ROOT / "docs" / "explanation" / "storage.md").read_text())
    assert len(named) >= 12
    there = {
        (path.name, test)
        for path in (ROOT / "tests").rglob("test_*.py")
        for test in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
    }
    file = ""
    for written, test in named:
        file = written or file  # `::test` alone is in the file named before it
        assert (file, test) in there


def test_the_tests_that_a_page_names_are_there() -> None:
    named = {
        (name_of(page), test)
        for page in PAGES
        for test in re.findall(r"`(tests/[\w/]+\.py::\w+)[`\[]", page.read_text(encoding="utf-8"))
    }
    assert len(named) > 500
    gone = []
    for where, test in sorted(named):
        path, _, name = test.partition("::")
        file = ROOT / path
        if not file.exists() or not re.search(rf"def {name}\(", file.read_text(encoding="utf-8")):
            gone.append((where, test))
    assert not gone


def test_the_files_that_a_page_names_are_there() -> None:
    package = ROOT / "src" / "bkpy"
    gone = []
    for page in PAGES:
        roots = [
            ROOT,
            ROOT / "tests",
            package,
            package / page.stem,
        ]  # the last: in docs/explanation/storage.md, what is in storage/
        for name in re.findall(r"`((?:[\w.]+/)+\w+\.py)`", page.read_text(encoding="utf-8")):
            if not any((root / name).exists() for root in roots):
                gone.append((name_of(page), name))
    assert not gone


def test_every_page_is_on_the_site_and_in_the_list_of_pages() -> None:
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert pages == set(re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    how_to = (ROOT / "docs" / "how-to" / "README.md").read_text(encoding="utf-8")
    assert {f"how-to/{name}" for name in re.findall(r"\]\(([\w-]+\.md)\)", how_to)} >= {
        page for page in pages if page.startswith("how-to/") and not page.endswith("README.md")
    }
