"""Wheel and sdist have what they need and nothing else, and work where nothing but them is installed."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import bkpy

SOURCE = Path(__file__).parents[2]
TIMEOUT_S = 600.0  # of a command: pip gets from elsewhere what bkpy needs, and compiles it, beside other tests
PACKAGES = ("bkpy", "pyspark_bkpy")
BESIDE_THEM = {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml", "PKG-INFO", ".gitignore"}
# Spark's own package is half a gigabyte: of it there is only what the entry imports, to see that the entry is found.
SPARK = "class DataSource: ...\nclass DataSourceReader: ...\n"

pytestmark = pytest.mark.timeout(3 * TIMEOUT_S)


class Built(NamedTuple):
    wheel: Path
    sdist: Path


def run(*words: object, cwd: Path) -> str:
    """What the command prints; it must succeed. Nothing of this source tree is to be found by it."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("BKPY_", "PYTHONPATH"))}
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, cwd=cwd, env=clean, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The sdist of this tree, and the wheel that is built from that sdist."""
    to = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", to, SOURCE, cwd=to)
    (wheel,), (sdist,) = to.glob("*.whl"), to.glob("*.tar.gz")
    return Built(wheel, sdist)


LINKED = "linked"


@pytest.fixture(
    scope="module", params=[LINKED, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in Built._fields)]
)
def installed(request: pytest.FixtureRequest, built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment in which the wheel or the sdist was installed, as users do it.

    `LINKED`: the wheel, and links to the installed packages that it requires; pip takes much longer to install these.
    """
    to = tmp_path_factory.mktemp(request.param)
    if request.param == LINKED:
        run(sys.executable, "-m", "venv", "--without-pip", to / "venv", cwd=to)
        python = to / "venv/bin/python"
        run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", built.wheel, cwd=to)
        link_requirements(
            Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=to).strip())
        )
        return python.parent
    run(sys.executable, "-m", "venv", to / "venv", cwd=to)
    programs = to / "venv/bin"
    run(programs / "pip", "install", "--disable-pip-version-check", getattr(built, request.param), cwd=to)
    return programs


def link_requirements(packages: Path) -> None:
    """Add what the one distribution there requires, directly or not, as the interpreter of the tests has it."""
    (own,) = importlib.metadata.distributions(path=[str(packages)])
    wanted, linked = list(own.requires or ()), set[str]()
    while wanted:
        requirement = Requirement(wanted.pop())
        name = canonicalize_name(requirement.name)
        if name in linked or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        assert not requirement.extras, requirement
        found = importlib.metadata.distribution(requirement.name)
        assert found.version in requirement.specifier
        linked.add(name)
        wanted += found.requires or ()
        for entry in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            (packages / entry).symlink_to(str(found.locate_file(entry)))


def source_files() -> set[str]:
    """The files of the packages, by their paths in an archive."""
    found = (path for package in PACKAGES for path in (SOURCE / "src" / package).rglob("*") if path.is_file())
    return {str(path.relative_to(SOURCE / "src")) for path in found if "__pycache__" not in path.parts}


def test_the_wheel_has_the_packages_and_their_license(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = set(archive.namelist())
    own = {name for name in names if ".dist-info/" not in name}
    assert own == source_files()
    assert {Path(name).name for name in names - own} == {
        *("METADATA", "WHEEL", "RECORD", "entry_points.txt", "LICENSE"),
    }


def test_the_sdist_has_what_the_wheel_is_built_from_and_not_the_whole_tree(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    assert {name for name in names if name.startswith("src/")} == {f"src/{name}" for name in source_files()}
    assert {name for name in names if not name.startswith("src/")} == BESIDE_THEM


def test_the_metadata_are_sound_and_the_readme_renders(built: Built) -> None:
    told = run(sys.executable, "-m", "twine", "check", "--strict", *built, cwd=built.wheel.parent)
    assert told.count("PASSED") == 2, told
    with zipfile.ZipFile(built.wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(archive.read(name).decode())
    assert (metadata["Name"], metadata["Version"]) == ("bkpy", bkpy.__version__)
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra", [])) == {
        "arrow",
        "bookkeeper",
        "local",
        "spark",
        "demo",
        "docs",
        "dev",
    }


def test_the_command_works_where_it_is_installed(installed: Path) -> None:
    home = installed.parent
    assert run(installed / "bkpy", "--version", cwd=home).strip().endswith(bkpy.__version__)
    assert "--config" in run(installed / "bkpy", "bookie", "run", "--help", cwd=home)
    assert "--connect" in run(installed / "bkpy", "ledger", "write", "--help", cwd=home)


def test_the_packages_are_imported_from_where_they_are_installed(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "pyspark/sql").mkdir(parents=True)
    (tmp_path / "pyspark/sql/datasource.py").write_text(SPARK)
    code = (
        "import bkpy, sys; sys.path.append(sys.argv[1]); import pyspark_bkpy;"
        "print(bkpy.__version__, bkpy.__file__, pyspark_bkpy.__file__, pyspark_bkpy.DefaultSource.name())"
    )
    version, *files, name = run(installed / "python", "-P", "-c", code, tmp_path, cwd=tmp_path).split()
    assert (version, name) == (bkpy.__version__, "bkpy")
    assert all(Path(file).is_relative_to(installed.parent) for file in files), files


def test_a_command_that_lacks_an_extra_says_which(installed: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("BKPY_", "PYTHONPATH"))}
    command = [str(installed / "bkpy"), "local", "--dir", str(installed.parent / "local")]
    done = subprocess.run(command, capture_output=True, text=True, env=clean, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 1
    assert "pip install 'bkpy[local]'" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
