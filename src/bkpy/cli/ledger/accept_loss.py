"""`bkpy ledger recover --accept-loss`: closes a ledger whose missing bookies will never come back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from bkpy.cli.connecting import connect_admin
from bkpy.cli.input import confirm_by_typing
from bkpy.cli.output.json import print_json
from bkpy.cli.output.progress import progress
from bkpy.cli.output.tables import print_table
from bkpy.cli.output.text import say
from bkpy.cli.running import run

if TYPE_CHECKING:
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.recovery.ledger_recovery import Survey

_NOTHING = "nothing is given up, and the ledger stays IN_RECOVERY"


def recover_accepting_loss(uri: str, ledger_id: int, password: bytes, *, yes: bool, as_json: bool) -> dict[str, Any]:
    """What was shown and what was done. Ends the command if the user doesn't confirm the loss.

    Begins with a recovery that gives nothing up.
    """
    found = run(_survey(uri, ledger_id, password))
    if found["result"] is not None:
        return found
    if not (yes and as_json):
        show_survey(found)
    if not yes:
        confirm_by_typing(f"To give up what may be lost, type the ledger's id, {ledger_id}:", str(ledger_id), _NOTHING)
    found["result"] = run(_close(uri, ledger_id, password, found["last_entry"]))
    return found


async def _survey(uri: str, ledger_id: int, password: bytes) -> dict[str, Any]:
    """What bookies still report of the ledger, or the `result` of a recovery that had to give nothing up."""
    import bkpy
    from bkpy.metadata.logs.maintenance import log_of

    async with connect_admin(uri) as admin:
        client = admin.client
        before = await client.ledger_metadata(ledger_id)
        started = time.monotonic()
        with progress(unit="") as bar:
            bar.add_task(
                f"ledger {ledger_id} is {before.state.value}, recovering without giving anything up", total=None
            )
            try:
                reader = await client.recover_ledger(ledger_id, password=password)
            except bkpy.LedgerRecoveryError as error:
                why = error.message
            else:
                await reader.close()
                result = _result(ledger_id, reader.metadata, started)
                return {"ledger_id": ledger_id, "state_before": before.state.value, "result": result}
        survey = await admin.survey_ledger(ledger_id, password=password)
        described = _described(survey, admin.registered_bookies)
        belongs = log_of(survey.metadata)
        described["log"] = None if belongs is None else belongs.name
        return {"ledger_id": ledger_id, "state_before": before.state.value, "why": why, **described, "result": None}


async def _close(uri: str, ledger_id: int, password: bytes, at_least: int) -> dict[str, Any]:
    async with connect_admin(uri) as admin:
        started = time.monotonic()
        with progress(unit="") as bar:
            bar.add_task(f"closing ledger {ledger_id}", total=None)
            closed = await admin.accept_loss(ledger_id, at_least, password=password)
        return _result(ledger_id, closed, started)


def _result(ledger_id: int, closed: LedgerMetadata, started: float) -> dict[str, Any]:
    return {
        "ledger_id": ledger_id,
        "state": closed.state.value,
        "last_entry": closed.last_entry,
        "length": closed.length,
        "accepted_loss": None if closed.accepted_loss is None else closed.accepted_loss.fields(),
        "seconds": round(time.monotonic() - started, 3),
    }


def _described(survey: Survey, readable: frozenset[str]) -> dict[str, Any]:
    from bkpy.protocol.ledger.giving_up import unreadable

    metadata = survey.metadata
    able = {name for name, last_entry in survey.seen.items() if isinstance(last_entry, int)}
    last_ensemble = set(metadata.fragments[-1].bookies)
    beyond = {
        name: last_entry
        for name, last_entry in survey.seen.items()
        if isinstance(last_entry, int) and last_entry > survey.last_entry
    }
    return {
        "acknowledged": survey.acknowledged,
        "last_entry": survey.last_entry,
        "length": survey.length,
        "seen_beyond": beyond,
        "bookies": {name: survey.seen.get(name, "no answer") for name in metadata.fragments[-1].bookies},
        "can_not_tell": sorted(last_ensemble - able),
        "unreadable": [
            one._asdict() for one in unreadable(metadata, survey.last_entry, (readable - last_ensemble) | able)
        ],
    }


def show_survey(found: dict[str, Any]) -> None:
    """Prints for people what is certain, what may be lost, and what each bookie reported."""
    lines = [f"Ledger {found['ledger_id']} can't be recovered without giving something up: {found['why']}.", ""]
    end, acknowledged = found["last_entry"], found["acknowledged"]
    lines.append("certain: " + ("no entry" if acknowledged < 0 else f"entries 0 to {acknowledged} were acknowledged"))
    if end > acknowledged:
        lines.append(f"found: {_entries(acknowledged + 1, end)}, which may have been acknowledged, and will be kept")
    lines.append(f"the ledger will end {'without entries' if end < 0 else f'at entry {end}'}, for good")
    lines += [f"can't be read: {_lost(one)}" for one in found["unreadable"]]
    away = ", ".join(found["can_not_tell"])
    if away:
        lines.append(f"may be lost: entries from {end + 1} on, as many as were acknowledged with {away}")
        lines.append(f"a writer that still reaches {away} could go on there, in vain: is it stopped?")
    lines += [
        f"found behind a gap, and will not be kept: entry {n} of {name}" for name, n in found["seen_beyond"].items()
    ]
    if found["log"] is not None:
        lines.append(
            f"it is a ledger of log {found['log']}, which continues after a gap in its positions and uses none twice"
        )
    lines.append("")
    lines += [f"{name}: {_said(last_entry)}" for name, last_entry in found["bookies"].items()]
    for line in lines:
        say(line)


def _entries(first: int, last: int) -> str:
    return f"entry {first}" if first == last else f"entries {first} to {last}"


def _lost(one: dict[str, Any]) -> str:
    which = _entries(one["first"], one["last"])
    some = f"{one['entries']} of " if one["entries"] <= one["last"] - one["first"] else ""
    return f"{some}{which}, unless one of these comes back: {', '.join(one['bookies'])}"


def _said(last_entry: int | str) -> str:
    if isinstance(last_entry, str):
        return last_entry
    return "holds nothing of it" if last_entry < 0 else f"its last entry is {last_entry}"


def show(found: dict[str, Any], *, as_json: bool) -> None:
    """Prints the result."""
    if as_json:
        print_json(found)
        return
    result = found["result"]
    loss = result["accepted_loss"]
    if loss is None:
        say("nothing had to be given up")
    rows = [(name.replace("_", " "), value) for name, value in result.items() if name != "accepted_loss"]
    if loss is not None:
        rows.append(("given up", f"what {', '.join(loss['bookies']) or 'damaged copies'} may have had"))
    print_table(("", ""), [(name, f"{v:.3f}" if isinstance(v, float) else str(v)) for name, v in rows])
