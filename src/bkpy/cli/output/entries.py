"""How entries are printed, one a line: as text, in hexadecimal digits, or as JSON.

Invariant: no byte of an entry reaches a terminal as a control character, unless --raw asks for it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from bkpy.cli.output.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

FORMATS: Final = ("text", "hex", "json")

_ESCAPED = f"{__name__}.escaped"  # in the context's `meta`


def _note_raw(ctx: click.Context, _: click.Parameter, raw: bool) -> None:
    ctx.meta[_ESCAPED] = not raw and sys.stdout.isatty()


raw_option = click.option(
    "--raw",
    is_flag=True,
    expose_value=False,
    callback=_note_raw,
    help="Print control characters unchanged on a terminal too, as into a file or pipe, instead of escaping them.",
)


def _escaped() -> bool:
    ctx = click.get_current_context(silent=True)
    return ctx is not None and bool(ctx.meta.get(_ESCAPED))


def payload_line(form: str) -> Callable[[bytes], bytes]:
    """From a payload to a line that has nothing else, as text or hex."""
    if form != "text":
        return lambda data: data.hex().encode() + b"\n"
    if _escaped():
        return lambda data: printable(data.decode(errors="backslashreplace")).encode() + b"\n"
    return lambda data: data + b"\n"


def json_line(fields: dict[str, Any], data: bytes) -> bytes:
    """An object with these fields, the payload and its length. A payload that is not UTF-8 is in Base64."""
    import base64
    import json

    line = {**fields, "length": len(data)}
    try:
        line["text"] = data.decode()
    except UnicodeDecodeError:
        line["base64"] = base64.b64encode(data).decode()
    return json.dumps(line, ensure_ascii=_escaped()).encode() + b"\n"
