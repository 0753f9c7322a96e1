"""Which tests fail now and then: how the reports of several runs are counted."""

from __future__ import annotations

from tests.flakes import FailureCounts

PASSED = '<testsuites><testsuite><testcase classname="tests.unit.test_a" name="test_one[x]"/></testsuite></testsuites>'
FAILED = (
    '<testsuites><testsuite><testcase classname="tests.unit.test_a" name="test_one[x]">'
    '<failure message="assert 1 == 2&#10;more">trace</failure></testcase>'
    '<testcase classname="tests.unit.test_b" name="test_two"><error message="no port">trace</error></testcase>'
    "</testsuite></testsuites>"
)


def test_a_test_that_fails_in_one_run_of_three_is_named_with_its_first_error() -> None:
    counts = FailureCounts()
    assert [len(counts.add(report)) for report in (PASSED, FAILED, PASSED)] == [0, 2, 0]
    _, one, two = counts.table().splitlines()
    assert one.split(maxsplit=2) == ["3", "1", "tests/unit/test_a.py::test_one[x]: assert 1 == 2"]
    assert two.split(maxsplit=2) == ["1", "1", "tests/unit/test_b.py::test_two: no port"]


def test_runs_without_a_failure_say_so() -> None:
    counts = FailureCounts()
    counts.add(PASSED)
    assert counts.table() == "1 tests, none of which has failed"
