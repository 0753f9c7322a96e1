"""What plants mutants and runs their tests tells those that are noticed from those that aren't, and from nonsense."""

from __future__ import annotations

import json
import os
import py_compile
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest
from tests.conftest import alive
from tests.mutants import Mutant
from tests.mutants.__main__ import ROOT
from tests.mutants.planting import DoesNotApply, all_mutants, changed, check_test_id, locate, modules_of
from tests.mutants.running import Outcome
from tests.waiting import eventually_here

if TYPE_CHECKING:
    from collections.abc import Sequence
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

PROCESSES = """\
import multiprocessing, subprocess, sys
import pytest, tiny


def test_started():
    words = [sys.executable, "-c", "import tiny; print(tiny.total([2]))"]
    assert subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout == b"2\\n"


@pytest.mark.parametrize("way", ["fork", "spawn", "forkserver"])
def test_of_multiprocessing(way):
    with multiprocessing.get_context(way).Pool(1) as pool:
        assert pool.apply(tiny.total, ([2],)) == 2
"""

ELSEWHERE = """\
import importlib.util, pathlib, sys


def test_elsewhere():
    path = pathlib.Path("src/tiny/__init__.py").absolute()
    spec = importlib.util.spec_from_file_location("tiny.other", path)
    sys.modules["tiny.other"] = importlib.util.module_from_spec(spec)
    assert False
"""

START = """\
import json, sys
from pathlib import Path
from tests.mutants import Mutant
from tests.mutants.running import Project, check_without, try_all
root, timeout_s, test_timeout_s, jobs, mutants = json.loads(sys.argv[1])
project = Project(Path(root), timeout_s, test_timeout_s)
mutants = [Mutant(*one) for one in mutants]
"""
TRY = f"""{START}
results = []
try_all(project, mutants, jobs, results.append)
print(json.dumps([(one.mutant.name, one.outcome, one.detail, one.output) for one in results]))
"""
CHECK = f"{START}print(check_without(project, mutants, jobs), end='')"

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


class Seen(NamedTuple):
    """A result, as far as it is told here."""

    name: str
    outcome: Outcome
    detail: str
    output: str


def run_here(
    script: str, tiny: Path, mutants: Sequence[Mutant], jobs: int = 1, timeouts: Sequence[float] = (600.0, 600.0)
) -> str:
    """What the script prints: a process of its own, since this one has loaded too much."""
    words = [sys.executable, "-c", script, json.dumps([str(tiny), *timeouts, jobs, mutants])]
    return subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def tried(
    tiny: Path, mutants: Sequence[Mutant], *, jobs: int = 1, timeout_s: float = 600.0, test_timeout_s: float = 600.0
) -> list[Seen]:
    """The results, in the order in which they come."""
    printed = run_here(TRY, tiny, mutants, jobs, (timeout_s, test_timeout_s))
    return [Seen(name, Outcome(outcome), *texts) for name, outcome, *texts in json.loads(printed)]


@pytest.mark.exhaustive
def test_each_kind_of_mutant_is_told(tiny: Path) -> None:
    mutants = [mutant(name) for name in TINY if name != "endless"]
    seen = tried(tiny, mutants, jobs=2)
    assert {one.name: one.outcome for one in seen} == {one.name: TINY[one.name][2] for one in mutants}
    assert next(one.detail for one in seen if one.name == "noticed") == "tests/test_tiny.py::test_total"
    assert (tiny / "src" / "tiny" / "__init__.py").read_text() == SOURCE


@pytest.mark.exhaustive
def test_tests_that_fail_without_a_mutant_are_told(tiny: Path) -> None:
    sound, gone = mutant("noticed"), mutant("with a test that isn't there")
    assert run_here(CHECK, tiny, [sound]) == ""
    assert "not found: " in run_here(CHECK, tiny, [sound, gone])


@pytest.mark.exhaustive
def test_nothing_of_a_mutant_is_left_when_the_next_one_is_tried(tiny: Path) -> None:
    """Their texts have the same length, and are written in the same second: so bytecode looks alike."""
    names = ["noticed", "unnoticed", "noticed", "unnoticed"]
    mutants = [mutant(name)._replace(name=f"{name} {number}") for number, name in enumerate(names)]
    assert [one.outcome for one in tried(tiny, mutants)] == [TINY[name][2] for name in names]


@pytest.mark.exhaustive
def test_bytecode_of_what_was_there_before_does_not_hide_a_mutant(tiny: Path) -> None:
    module = tiny / "src" / "tiny" / "__init__.py"
    py_compile.compile(str(module), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    (result,) = tried(tiny, [mutant("noticed")])
    assert result.outcome is Outcome.NOTICED


@pytest.mark.exhaustive
def test_processes_of_tests_have_the_mutant_too(tiny: Path) -> None:
    (tiny / "tests" / "test_processes.py").write_text(PROCESSES)
    tests = ["test_started", *(f"test_of_multiprocessing[{way}]" for way in ("fork", "spawn", "forkserver"))]
    mutants = [mutant("noticed")._replace(name=test, tests=(f"tests/test_processes.py::{test}",)) for test in tests]
    assert run_here(CHECK, tiny, mutants) == ""
    assert [(one.name, one.outcome) for one in tried(tiny, mutants)] == [(test, Outcome.NOTICED) for test in tests]


@pytest.mark.thorough
def test_what_was_loaded_before_is_no_verdict_on_a_mutant(tiny: Path) -> None:
    load = f"import sys; sys.path.insert(0, {str(tiny / 'src')!r}); import tiny\n"
    ((_, outcome, _, output),) = json.loads(run_here(load + TRY, tiny, [mutant("noticed")]))
    assert outcome == Outcome.WRONG
    assert "tiny is loaded already" in output


@pytest.mark.exhaustive
def test_what_tests_load_from_elsewhere_is_no_verdict_on_a_mutant(tiny: Path) -> None:
    (tiny / "tests" / "test_elsewhere.py").write_text(ELSEWHERE)
    (seen,) = tried(tiny, [mutant("noticed")._replace(tests=("tests/test_elsewhere.py",))])
    assert seen.outcome is Outcome.WRONG
    assert f"tiny.other is loaded from {tiny}/src/tiny/__init__.py, and not from " in seen.output


@pytest.mark.exhaustive
def test_what_is_loaded_before_has_nothing_of_the_sources_or_the_tests_and_no_threads() -> None:
    load = (
        "import os, sys; from tests.mutants.__main__ import load_libraries, all_mutants\n"
        "load_libraries(); all_mutants()\n"
        "for name, module in sys.modules.items(): print(name, getattr(module, '__file__', None))\n"
        "print('threads:', len(os.listdir('/proc/self/task')))"
    )
    done = subprocess.run([sys.executable, "-c", load], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    *modules, threads = done.stdout.splitlines()
    packages = {path.name for path in (ROOT / "src").iterdir()}
    names = dict(line.split(" ", 1) for line in modules)
    assert "numpy" in names
    assert [name for name in names if name.partition(".")[0] in packages] == []
    own = [name for name, path in names.items() if path.startswith((f"{ROOT}/src/", f"{ROOT}/tests/"))]
    assert [name for name in own if name != "tests" and not name.startswith("tests.mutants")] == []
    assert threads == "threads: 1"


@pytest.mark.exhaustive
def test_tests_that_never_end_count_as_noticed(tiny: Path) -> None:
    """Those that pytest can end fail; where it is stuck itself, it is killed."""
    (ended,) = tried(tiny, [mutant("endless")], test_timeout_s=1.0)
    assert ended.outcome is Outcome.NOTICED
    (killed,) = tried(tiny, [mutant("endless")], timeout_s=3.0)
    assert killed.outcome is Outcome.HUNG


@pytest.mark.thorough
@pytest.mark.parametrize("own_session", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_what_the_tests_of_a_mutant_leave_running_is_ended(tiny: Path, own_session: bool) -> None:
    leaving = "import pathlib, subprocess\n\ndef test_left():\n"
    leaving += f"    left = subprocess.Popen(['sleep', '600'], start_new_session={own_session})\n"
    leaving += "    pathlib.Path('pid').write_text(str(left.pid))\n    assert False\n"
    (tiny / "tests" / "test_left.py").write_text(leaving)
    (noticed,) = tried(tiny, [mutant("noticed")._replace(tests=("tests/test_left.py",))])
    assert noticed.outcome is Outcome.NOTICED
    pid = int((tiny / "pid").read_text())
    eventually_here(lambda: not alive(pid), "it ends as well")


@pytest.mark.thorough
def test_a_test_that_hangs_does_not_outlive_a_runner_that_was_killed(tiny: Path) -> None:
    stuck = "\n    ".join(
        (
            "import os, pathlib\n\ndef test_stuck():",
            "pathlib.Path('pid').write_text(str(os.getpid()))",
            "while True: pass",
        )
    )
    (tiny / "tests" / "test_stuck.py").write_text(stuck)
    planted = mutant("noticed")._replace(tests=("tests/test_stuck.py",))
    given = json.dumps([str(tiny), 600.0, 600.0, 1, [planted]])
    runner = subprocess.Popen([sys.executable, "-c", TRY, given], cwd=ROOT, env={**os.environ, "TMPDIR": str(tiny)})
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
