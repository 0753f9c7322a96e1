"""A picture of the figures that `table.py --json` and `peers/run.py --json` wrote: as an SVG with bars.

    python benchmarks/picture.py BENCH.json [PEERS.json] --to FILE.svg

First each row's share of what bare sockets and fdatasync move on the same machine; below, where there are figures of
the peer, how many times its rate is reached.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

LABEL_PX = 350
BAR_PX = 330
VALUE_PX = 180  # right of the longest bar
ROW_PX = 26
BAR_HEIGHT_PX = 16
TITLE_PX = 56
FOOT_PX = 40
COLOURS = {"bar": "#2a6fbb", "grey": "#e4e8ec", "text": "#24292f", "faint": "#6e7781"}

Bar = tuple[str, float, str]  # label, length, what is written beside it


def ceiling_bars(found: dict[str, Any]) -> list[Bar]:
    """Of the standard table: our share of the bare-socket ceiling."""
    return [
        (row["name"], row["ratio_to_ceiling"], f"{row['ratio_to_ceiling']:.2f}   {_rate(row)}") for row in found["rows"]
    ]


def peer_bars(found: dict[str, Any]) -> list[Bar]:
    """Of the comparison: times the peer's rate, for each call of ours beside each of the peer's."""
    bars = []
    for row in found["rows"]:
        for one in row["comparisons"]:
            calls = one["ours"] if len(row["theirs"]) == 1 else f"{one['ours']} : {one['theirs']}"
            bars.append((f"{row['name']} ({calls})", one["times"], f"{one['times']:.1f}"))
    return bars


def _rate(row: dict[str, Any]) -> str:
    return f"{row['entries_per_s']:,.0f}/s, {row['mb_per_s']:,.{0 if row['mb_per_s'] >= 10 else 1}f} MB/s"


def svg(panels: Sequence[tuple[str, list[Bar]]], footer: str) -> str:
    """The panels one below the other. Each has its own scale, from 0 to its longest bar or 1, and grey up to 1."""
    width = LABEL_PX + BAR_PX + VALUE_PX
    heights = [TITLE_PX + len(bars) * ROW_PX for _, bars in panels]
    height = sum(heights) + FOOT_PX
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' font-family="Helvetica, Arial, sans-serif">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for i, (title, bars) in enumerate(panels):
        parts += _panel(sum(heights[:i]), title, bars)
    parts += [_text(12, height - 14, footer, "start", COLOURS["faint"], 11), "</svg>"]
    return "\n".join(parts) + "\n"


def _panel(top: int, title: str, bars: list[Bar]) -> list[str]:
    longest = max([1.0, *(length for _, length, _ in bars)])
    first = top + TITLE_PX
    parts = [
        _text(12, top + 34, title, "start", COLOURS["text"], 16),
        _rect(LABEL_PX, first - 6, BAR_PX / longest, len(bars) * ROW_PX, COLOURS["grey"]),
    ]
    for i, (label, length, value) in enumerate(bars):
        y = first + i * ROW_PX
        pixels = max(1.0, BAR_PX * length / longest)
        parts.append(_text(LABEL_PX - 8, y + 13, label, "end", COLOURS["text"], 13))
        parts.append(_rect(LABEL_PX, y, pixels, BAR_HEIGHT_PX, COLOURS["bar"]))
        parts.append(_text(LABEL_PX + pixels + 6, y + 13, value, "start", COLOURS["text"], 12))
    return parts


def _rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str, colour: str, size: int) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" font-size="{size}">{escape(text)}</text>'
    )


def _footer(found: dict[str, Any], peers: dict[str, Any] | None) -> str:
    on = found["machine"]
    text = f"{found['date'][:10]}, {on['cpu']}, {on['cores']} cores, {on['memory_gib']} GiB, {on['kernel']}; "
    text += f"Python {found['versions']['python']}, bkpy {found['versions']['bkpy']}"
    return text if peers is None else f"{text}, Apache BookKeeper {peers['versions']['bookkeeper']}"


def picture(found: dict[str, Any], peers: dict[str, Any] | None) -> str:
    """The whole picture, from the contents of the two files."""
    panels = [("Share of bare sockets and fdatasync (grey: all of it)", ceiling_bars(found))]
    if peers is not None:
        panels.append(("Times Apache BookKeeper (grey: as fast)", peer_bars(peers)))
    return svg(panels, _footer(found, peers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path, help="what table.py wrote")
    parser.add_argument(
        "peers", type=Path, nargs="?", help="what peers/run.py wrote; left out if there is no such file"
    )
    parser.add_argument("--to", type=Path, required=True, metavar="FILE", help="where the picture goes")
    options = parser.parse_args()
    peers = json.loads(options.peers.read_text()) if options.peers is not None and options.peers.exists() else None
    options.to.write_text(picture(json.loads(options.bench.read_text()), peers))


if __name__ == "__main__":
    main()
