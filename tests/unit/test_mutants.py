"""What plants mutants and runs their tests tells those that are noticed from those that aren't, and from nonsense."""

from __future__ import annotations

import py_compile
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.conftest import alive
from tests.mutants import Mutant
from tests.mutants.__main__ import ROOT
from tests.mutants.planting import DoesNotApply, all_mutants, changed, check_test_id, locate, modules_of
from tests.mutants.running import Outcome, Project, check_without, try_all
from tests.waiting import eventually_here

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = '''\
"""A package of one function."""


def total(numbers):
    result = 0
    for number in numbers:
        if number > 0:
            result += number
        else:
            result -= number
    return result


def unused(number):
    return number + 1
'''

TESTS = """\
from tiny import total


def test_total():
    assert total([1, 2]) == 3


def test_nothing():
    assert total([]) == 0
"""

# By their names: what each changes, and what it is to come to.
TINY = {
    "noticed": ("result += number", "result += 1", Outcome.NOTICED),
    "unnoticed": ("result -= number", "result -= 1", Outcome.SURVIVED),
    "endless": (
        "for number in numbers:",
        "import time\nwhile True:\n    time.sleep(0.01)\nfor number in numbers:",
        Outcome.HUNG,
    ),
    "ambiguous": ("number", "1", Outcome.WRONG),
    "nowhere": ("number > 7", "1", Outcome.WRONG),
    "no Python": ("return result", "return (result", Outcome.WRONG),
    "the same": ("return result", "return result  # really", Outcome.WRONG),
    "of an unknown name": ("result += number", "result += numbre", Outcome.WRONG),
    "not to be imported": ("def total(numbers):", "import nothing_of_this_name\ndef total(numbers):", Outcome.WRONG),
    "with a test that isn't there": ("return result", "return result + 1", Outcome.WRONG),
}


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    package = tmp_path / "src" / "tiny"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(SOURCE)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_tiny.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    return tmp_path


def mutant(name: str) -> Mutant:
    find, replace, _ = TINY[name]
    test = "test_gone" if name == "with a test that isn't there" else "test_total"
    return Mutant(name, "everything", find, replace, (f"tests/test_tiny.py::{test}",))


@pytest.mark.thorough
def test_each_kind_of_mutant_is_told(tiny: Path) -> None:
    project = Project(tiny, timeout_s=60.0, test_timeout_s=2.0)
    mutants = [mutant(name) for name in TINY if name != "endless"]
    assert not check_without(project, mutants[:2], jobs=1)
    assert "no tests ran" in check_without(project, mutants[-1:], jobs=1)
    seen: list[str] = []
    results = try_all(project, mutants, 2, lambda result: seen.append(result.mutant.name))
    assert {r.mutant.name: r.outcome for r in results} == {m.name: TINY[m.name][2] for m in mutants}
    assert sorted(seen) == sorted(m.name for m in mutants)
    assert results[0].detail == "tests/test_tiny.py::test_total"
    assert (tiny / "src" / "tiny" / "__init__.py").read_text() == SOURCE


def test_bytecode_of_what_was_there_before_does_not_hide_a_mutant(tiny: Path) -> None:
    module = tiny / "src" / "tiny" / "__init__.py"
    py_compile.compile(str(module), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    (result,) = try_all(Project(tiny, timeout_s=60.0, test_timeout_s=2.0), [mutant("noticed")], 1)
    assert result.outcome is Outcome.NOTICED


@pytest.mark.thorough
def test_tests_that_never_end_count_as_noticed(tiny: Path) -> None:
    """Those that pytest can end fail; where it is stuck itself, it is killed."""
    (ended,) = try_all(Project(tiny, timeout_s=60.0, test_timeout_s=1.0), [mutant("endless")], 1)
    assert ended.outcome is Outcome.NOTICED
    (killed,) = try_all(Project(tiny, timeout_s=3.0, test_timeout_s=60.0), [mutant("endless")], 1)
    assert killed.outcome is Outcome.HUNG


def test_a_test_that_hangs_does_not_outlive_a_runner_that_was_killed(tiny: Path) -> None:
    stuck = "\n    ".join(
        (
            "import os, pathlib\n\ndef test_stuck():",
            "pathlib.Path('pid').write_text(str(os.getpid()))",
            "while True: pass",
        )
    )
    (tiny / "tests" / "test_stuck.py").write_text(stuck)
    run = (
        "import sys; from pathlib import Path; from tests.mutants.running import Project; root = Path(sys.argv[1]); "
        "Project(root, timeout_s=600.0, test_timeout_s=600.0).run_tests(['tests/test_stuck.py'], root / 'src')"
    )
    runner = subprocess.Popen([sys.executable, "-c", run, str(tiny)], cwd=ROOT)
    written = tiny / "pid"
    try:
        pid = int(eventually_here(lambda: written.exists() and written.read_text(), "the test runs"))
    finally:
        runner.kill()
        runner.wait()
    eventually_here(lambda: not alive(pid), "it ends as well")


def test_a_replacement_is_indented_like_what_it_replaces(tiny: Path) -> None:
    find = "if number > 0:\n    result += number\nelse:\n    result -= number"
    planted = Mutant("", "", find, "if number:\n    result += abs(number)", ())
    text = changed(planted, locate(planted, tiny / "src"))
    assert (
        "    for number in numbers:\n        if number:\n            result += abs(number)\n    return result" in text
    )


def test_a_part_of_a_line_is_replaced_where_it_stands(tiny: Path) -> None:
    planted = Mutant("", "", "number > 0", "number >= 0", ())
    assert "        if number >= 0:\n" in changed(planted, locate(planted, tiny / "src"))


def test_parts_of_several_lines_are_replaced_where_they_stand(tiny: Path) -> None:
    planted = Mutant("", "", "> 0:\nresult += num", ">= 0:\n    result += 2 * num", ())
    text = changed(planted, locate(planted, tiny / "src"))
    assert "        if number >= 0:\n            result += 2 * number\n        else:" in text


def test_a_whole_line_is_not_taken_for_a_part_of_another(tiny: Path) -> None:
    source = tiny / "src" / "tiny" / "__init__.py"
    source.write_text(SOURCE + "\n\ndef more(number):\n    result = 01\n".replace("01", "0 + number"))
    assert locate(Mutant("", "", "result = 0", "result = 1", ()), tiny / "src").first == 4


@pytest.mark.thorough
def test_every_mutant_still_applies() -> None:
    problems: dict[str, str] = {}
    modules = modules_of(ROOT / "src")
    for planted in all_mutants():
        try:
            locate(planted, ROOT / "src", modules)
            for test in planted.tests:
                check_test_id(test, ROOT)
            if not planted.tests:
                problems[planted.name] = "no tests are named"
        except DoesNotApply as e:
            problems[planted.name] = str(e)
    assert not problems


@pytest.mark.exhaustive
def test_every_mutant_is_python_that_differs() -> None:
    modules = modules_of(ROOT / "src")
    problems: dict[str, str] = {}
    for planted in all_mutants():
        try:
            changed(planted, locate(planted, ROOT / "src", modules))
        except DoesNotApply as e:
            problems[planted.name] = str(e)
    assert not problems


@pytest.mark.exhaustive  # the first one looks for all of them, but not for their parameters
def test_the_tests_of_all_mutants_are_there_with_their_parameters() -> None:
    tests = sorted({test for planted in all_mutants() for test in planted.tests})
    words = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, "\n".join(line for line in done.stdout.splitlines() if line.startswith("ERROR"))


@pytest.mark.thorough
def test_a_test_that_is_gone_is_told() -> None:
    check_test_id("tests/unit/test_mutants.py::test_a_test_that_is_gone_is_told", ROOT)
    with pytest.raises(DoesNotApply, match="has no test_of_something_else"):
        check_test_id("tests/unit/test_mutants.py::test_of_something_else[1]", ROOT)
    with pytest.raises(DoesNotApply, match=r"there is no tests/unit/test_gone\.py"):
        check_test_id("tests/unit/test_gone.py::test_x", ROOT)
