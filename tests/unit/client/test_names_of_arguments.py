"""A wrong name of an argument of a public call fails at once, and for a type checker."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests import api_page

import bkpy
from bkpy.config.recovery import RecoverySettings

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]
URI = "zk://127.0.0.1:1/ledgers"
CALLS = [(cls, name, function) for cls in api_page.CLASSES for name, function in api_page.calls(cls)]
# What passes arguments on has no names of its own.
PASSED_ON = {"call", "submit", "iterate"}

MISSPELT = """\
import bkpy
from bkpy.config.recovery import RecoverySettings

async def main() -> None:
    async with bkpy.connect("zk://localhost:2181/ledgers", read_timout_s=1.0) as client:
        log = await client.open_log("orders", ensemble=3)
        await log.append(date=b"x")
        reader = await client.read_log("orders", pasword=b"")
        reader.read(frist=1)
        admin = bkpy.AdminClient(client, setings=None)
        RecoverySettings(copies_at_one=1)
        await admin.create_log("orders", retention=1)
        bkpy.threadsafe(client).call(log.append, date=b"x")
"""


def test_a_wrong_name_of_a_setting_is_refused_before_anything_is_connected() -> None:
    with pytest.raises(
        bkpy.ConfigError, match=r"argument: unknown setting read_timout_s; the nearest .* read_timeout_s"
    ):
        bkpy.connect(URI, read_timout_s=1.0)  # type: ignore[call-arg]


def test_a_wrong_name_of_a_setting_of_an_administrator_is_refused_at_once() -> None:
    with pytest.raises(bkpy.ConfigError, match="RecoverySettings: unknown setting copies_at_one; the nearest"):
        RecoverySettings(copies_at_one=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(("cls", "name", "function"), CALLS, ids=lambda it: getattr(it, "__name__", it))
def test_every_argument_of_a_public_call_has_a_name_and_a_type(
    cls: type, name: str, function: Callable[..., Any]
) -> None:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    for parameter in parameters:
        assert parameter.annotation is not parameter.empty
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            assert name in PASSED_ON
    needed = {
        p.name: None for p in parameters if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    }
    if name not in PASSED_ON:
        with pytest.raises(TypeError, match="unexpected keyword argument 'wrong_name'"):
            function(None, **needed, wrong_name=1)


@pytest.mark.exhaustive  # most of a minute without a cache
def test_a_type_checker_refuses_each_wrong_name(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(MISSPELT)
    command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    wrong = {int(line.split(":")[1]) for line in done.stdout.splitlines() if " error: " in line}
    assert wrong == {5, 6, 7, 8, 9, 10, 11, 12, 13}, done.stdout + done.stderr
