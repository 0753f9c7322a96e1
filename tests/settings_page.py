"""The page of all settings, made from their declarations: `python -m tests.settings_page --write`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bkpy.config.base import GIB, KIB, MIB
from bkpy.config.bookie import BookieSettings
from bkpy.config.client import ClientSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

    from bkpy.config.base import MetadataSettings

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"

_HEAD = """\
# Settings

Made by `make settings` from `src/bkpy/config/`; a test sees to it that this page is current. A name that ends in `_s`
is in seconds, one with `bytes` in bytes, one with `_mb` in MiB.

A bookie takes its settings from a TOML file (`bkpy bookie run --config FILE`), from environment variables
`BKPY_<NAME>` and from flags `--<name> VALUE`, the later ones overriding the earlier. A client takes its own as
arguments of `bkpy.connect`, or on the command line as `bkpy --set NAME=VALUE ...`.
"""


def page() -> str:
    return "\n".join((_HEAD, *_table("A bookie", BookieSettings), *_table("A client", ClientSettings)))


def _table(title: str, model: type[MetadataSettings]) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| setting | default | what it is |"
    yield "| --- | ---: | --- |"
    for name, field in model.model_fields.items():
        assert field.description, name
        yield f"| `{name}` | {_default(name, field)} | {field.description.replace('|', chr(92) + '|')} |"
    yield ""


def _default(name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "*needed*"
    value: Any = field.get_default(call_default_factory=True)
    if value is None or value == "":
        return ""
    if isinstance(value, int) and "bytes" in name:
        for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
            if value and value % factor == 0:
                return f"{value // factor:,} {unit}"
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else f"`{value}`"


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.settings_page --write")
    PAGE.write_text(page(), encoding="utf-8")
