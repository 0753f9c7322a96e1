"""`bkpy bookie check`: every checksum and every cross-reference in a bookie's directories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bkpy.cli.bookie.settings_command import SettingsCommand, settings_from
from bkpy.cli.output.json import json_option, print_json
from bkpy.cli.output.progress import byte_progress
from bkpy.cli.output.tables import print_table
from bkpy.cli.output.text import human_bytes, say

if TYPE_CHECKING:
    from bkpy.config.bookie import BookieSettings
    from bkpy.storage.tools.check.check import Checked
    from bkpy.storage.tools.check.defects import Defect

_LISTED = 1000  # findings to list; a broken disk has millions


@click.command(cls=SettingsCommand)
@click.option(
    "--running",
    is_flag=True,
    help="The bookie may run: check what does not change meanwhile, and list what is left out.",
)
@json_option
def check(path: str | None, running: bool, as_json: bool, **flags: str | tuple[str, ...] | None) -> int:
    """Check every checksum and every reference in a stopped bookie's directories, and change nothing.

    Exit status: 0 if all is well, 1 if anything is wrong; then the findings are listed, each with what to do about it.
    """
    settings = settings_from(path, flags)
    findings: list[Defect] = []
    count = 0

    def found(finding: Defect) -> None:
        nonlocal count
        count += 1
        if len(findings) < _LISTED:
            findings.append(finding)

    checked, size = _check(settings, running, found)
    if as_json:
        print_json(_as_json(settings, checked, size, findings, count))
    else:
        _show(checked, size, findings, count)
    return 1 if count else 0


def _check(settings: BookieSettings, running: bool, found: Any) -> tuple[Checked, int]:
    from bkpy.runtime.system import real_runtime
    from bkpy.storage.tools.check.check import bytes_to_check, check_bookie

    runtime = real_runtime()
    size = bytes_to_check(settings, runtime.files, running=running)
    with byte_progress("checking", size) as progress:
        return check_bookie(settings, runtime, running=running, found=found, progress=progress), size


def _as_json(
    settings: BookieSettings, checked: Checked, size: int, findings: list[Defect], count: int
) -> dict[str, Any]:
    return {
        "bookie_id": settings.bookie_id,
        "bytes": size,
        **checked._asdict(),
        "untold": checked.skipped,  # its name in 0.2
        "wrong": count,
        "findings": [finding._asdict() for finding in findings],
    }


def _show(checked: Checked, size: int, findings: list[Defect], count: int) -> None:
    if findings:
        print_table(
            ("file", "offset", "ledger", "what", "what to do"),
            [(f.path, _or_dash(f.offset), _or_dash(f.ledger_id), f.what, f.remedy) for f in findings],
        )
    if count > len(findings):
        say(f"and {count - len(findings)} more")
    for what in checked.skipped:
        say(f"not checked: {what}")
    say(
        f"{human_bytes(size)}, {checked.ledgers} ledgers, {checked.block_rows} rows of blocks, {checked.logs} entry "
        f"logs with {checked.blocks} sound blocks, {checked.journal_frames} journal frames: "
        + (f"{count} things are wrong" if count else "all is well")
    )


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)
