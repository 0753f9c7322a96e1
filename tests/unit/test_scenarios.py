"""The index of scenarios: the page is current, and marks that would get lost are errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.scenarios import BEHAVIOURS, PAGE, REQUIRED, MarkError, index, missing, page

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "import pytest\n\n"


@pytest.mark.thorough
def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m tests.scenarios --write`"


def test_every_behaviour_that_is_required_is_held_by_a_test() -> None:
    assert missing() == []


def test_behaviours_are_numbered_without_a_gap() -> None:
    assert list(BEHAVIOURS) == list(range(1, 69))
    assert BEHAVIOURS.keys() > REQUIRED


def test_marks_are_found_wherever_a_test_can_have_them(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "test_one.py").write_text(
        HEAD + "@pytest.mark.scenario(2)\n@pytest.mark.scenario(1)\nasync def test_both(): ...\n\n"
        "@pytest.mark.parametrize('x', [1, pytest.param(2, marks=pytest.mark.scenario(2))])\n"
        "def test_one_case(x): ...\n\n"
        "class TestMore:\n    @pytest.mark.scenario(1)\n    def test_method(self): ...\n"
    )
    here = f"{tmp_path.name}/a/test_one.py::"
    assert index(tmp_path) == {
        1: [f"{here}test_both", f"{here}test_method"],
        2: [f"{here}test_both", f"{here}test_one_case"],
    }


@pytest.mark.thorough
@pytest.mark.parametrize(
    "source",
    [
        "@pytest.mark.scenario(69)\ndef test_it(): ...\n",
        "@pytest.mark.scenario(1, 2)\ndef test_it(): ...\n",
        "@pytest.mark.scenario('1')\ndef test_it(): ...\n",
        "@pytest.mark.scenario(number=1)\ndef test_it(): ...\n",
        "@pytest.mark.scenario\ndef test_it(): ...\n",
        "@pytest.mark.scenario(1)\ndef helper(): ...\n",
        "pytestmark = pytest.mark.scenario(1)\n\ndef test_it(): ...\n",
        "held = pytest.mark.scenario(1)\n\n@held\ndef test_it(): ...\n",
    ],
)
def test_a_mark_that_would_get_lost_is_an_error(tmp_path: Path, source: str) -> None:
    (tmp_path / "test_wrong.py").write_text(HEAD + source)
    with pytest.raises(MarkError, match=r"test_wrong\.py:\d+: "):
        index(tmp_path)
