"""How entries are printed, one a line: as text, in hexadecimal digits, or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

FORMATS: Final = ("text", "hex", "json")


def payload_line(form: str) -> Callable[[bytes], bytes]:
    """From a payload to a line that has nothing else, as text or hex."""
    if form == "text":
        return lambda data: data + b"\n"
    return lambda data: data.hex().encode() + b"\n"


def json_line(fields: dict[str, Any], data: bytes) -> bytes:
    """An object with these fields, the payload and its length. What is no text is in base64."""
    import base64
    import json

    line = {**fields, "length": len(data)}
    try:
        line["text"] = data.decode()
    except UnicodeDecodeError:
        line["base64"] = base64.b64encode(data).decode()
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"
