"""Medians of rounds and the table of both systems, from the figures alone."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RATES = ("entries_per_s", "p50_ms", "p99_ms", "p999_ms", "ceiling_mb_per_s", "bookie_cpu_us")
PEAKS = ("client_rss_anon_mb", "bookie_rss_anon_mb", "server_rss_anon_mb")


def summary(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The median of each rate and latency, the peak of each memory figure; the rounds are kept beside them."""
    found: dict[str, Any] = {}
    for names, of in ((RATES, statistics.median), (PEAKS, max)):
        for name in names:
            values = [one[name] for one in rounds if one.get(name) is not None]
            if values:
                found[name] = of(values)
    return {**found, "rounds": list(rounds)}


def comparisons(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each call of ours beside each of the peer's: `times` the rate, and of the latencies (below 1 is shorter)."""
    for api, ours in row["ours"].items():
        for mode, theirs in row["theirs"].items():
            yield {
                "name": row["name"],
                "ours": api,
                "theirs": mode,
                "times": round(ours["entries_per_s"] / theirs["entries_per_s"], 2),
                "p50_ratio": round(ours["p50_ms"] / theirs["p50_ms"], 2),
                "p99_ratio": round(ours["p99_ms"] / theirs["p99_ms"], 2),
                "share_of_ceiling": share_of_ceiling(row["size"], ours),
            }


def share_of_ceiling(size: int, ours: dict[str, Any]) -> float | None:
    """Our bytes per second, as a share of what bare sockets moved in the same rounds."""
    ceiling = ours.get("ceiling_mb_per_s")
    return round(ours["entries_per_s"] * size / 1e6 / ceiling, 3) if ceiling else None


def tables(rows: Sequence[dict[str, Any]]) -> list[Table]:
    """Speed and memory, `bkpy / BookKeeper` in each cell of the latencies and the memory.

    A row in which BookKeeper failed has a line of ours alone, before those of the rounds that it brought to their end.
    """
    speed = _table("call (bkpy : BookKeeper)", "bkpy/s", "BookKeeper/s", "times", "p50 ms", "p99 ms", "of bare sockets")
    memory = _table("", "largest bookie, MB", "client, MB")
    for row in rows:
        for api, ours in row["ours"].items() if "their_failure" in row else ():
            waits = (_pair(ours, {}, name, 2) for name in ("p50_ms", "p99_ms"))
            speed.add_row(row["name"], f"{api} : failed", f"{ours['entries_per_s']:,.0f}", "-", "-", *waits, "")
        for entry in comparisons(row):
            ours, theirs = row["ours"][entry["ours"]], row["theirs"][entry["theirs"]]
            share = entry["share_of_ceiling"]
            speed.add_row(
                row["name"],
                f"{entry['ours']} : {entry['theirs']}",
                f"{ours['entries_per_s']:,.0f}",
                f"{theirs['entries_per_s']:,.0f}",
                f"{entry['times']:.2f}",
                *(_pair(ours, theirs, name, 2) for name in ("p50_ms", "p99_ms")),
                "" if share is None else f"{share:.2f}",
            )
            label = f"{entry['ours']} : {entry['theirs']}"
            memory.add_row(
                row["name"], label, *(_pair(ours, theirs, name, 0) for name in ("bookie_rss_anon_mb", PEAKS[0]))
            )
    return [speed, memory]


def same_client_comparisons(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """bkpy's bookies beside Java's, each call of Java's client; then bkpy's client beside Java's, on Java's bookies."""
    java = row["bookies"]["java"]
    for call, ours in row["bookies"]["bkpy"].items():
        yield {"what": "bookies", "name": row["name"], "call": call, **_ratios(ours, java[call])}
    for api, ours in row["bkpy_client"].items():
        for call, theirs in java.items():
            yield {"what": "clients", "name": row["name"], "call": f"{api} : {call}", **_ratios(ours, theirs)}


def _ratios(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float]:
    """`times` the rate; the others below 1 are less."""
    names = {"p50_ratio": "p50_ms", "p99_ratio": "p99_ms", "bookie_cpu_ratio": "bookie_cpu_us"}
    names |= {"bookie_memory_ratio": PEAKS[1], "client_memory_ratio": PEAKS[0]}
    both = {ratio: name for ratio, name in names.items() if ours.get(name) is not None and theirs.get(name)}
    return {
        "times": round(ours["entries_per_s"] / theirs["entries_per_s"], 2),
        **{ratio: round(ours[name] / theirs[name], 2) for ratio, name in both.items()},
    }


def same_client_tables(rows: Sequence[dict[str, Any]]) -> list[Table]:
    """`bkpy / Java` in each cell of latencies, processor time and memory."""
    waits = ("times", "p50 ms", "p99 ms")
    used = ("a bookie's us an entry", "its memory, MB", "resident so far, MB")
    bookies = _table("call", "bkpy's bookies/s", "Java's bookies/s", *waits, *used)
    bookies.title = "Java's client on bookies of bkpy, and of Java"
    clients = _table("call (bkpy : Java)", "bkpy's client/s", "Java's client/s", *waits, "client's memory, MB")
    clients.title = "Clients of bkpy, and of Java, on bookies of Java"
    for row in rows:
        java, bkpy = row["bookies"]["java"], row["bookies"]["bkpy"]
        resident = _pair({"mb": row["resident_mb"]["bkpy"]}, {"mb": row["resident_mb"]["java"]}, "mb", 0)
        for call, ours in bkpy.items():
            cells = _pair(ours, java[call], "bookie_cpu_us", 1), _pair(ours, java[call], PEAKS[1], 0), resident
            bookies.add_row(row["name"], call, *_speed(ours, java[call]), *cells)
        for api, ours in row["bkpy_client"].items():
            for call, theirs in java.items():
                cells = (*_speed(ours, theirs), _pair(ours, theirs, PEAKS[0], 0))
                clients.add_row(row["name"], f"{api} : {call}", *cells)
    for table in (bookies, clients):
        table.title_justify = "left"
    return [bookies, clients]


def _speed(ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[str, ...]:
    rates = ours["entries_per_s"], theirs["entries_per_s"]
    waits = (_pair(ours, theirs, name, 2) for name in ("p50_ms", "p99_ms"))
    return f"{rates[0]:,.0f}", f"{rates[1]:,.0f}", f"{rates[0] / rates[1]:.2f}", *waits


def further_table(rows: Sequence[dict[str, Any]], columns: dict[str, dict[str, str]]) -> Table:
    """Ours beside the further columns; "times" is our rate as a multiple of theirs, a dash is a row they don't have."""
    waits = "p50 / p99\nms"
    table = _table("call", "bkpy/s", waits)
    table.title, table.title_justify = "Beside further peers", "left"
    table.padding = (0, 1, 0, 0)  # a line of 165 characters has room for three further columns then
    for column in columns.values():
        rate = f"{column['title']}/s".replace(" ", "\n")
        for header in (rate, "times", waits):
            table.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        found = row.get("further", {})
        for api, ours in row["ours"].items():
            cells = [cell for key in columns for cell in _further_cells(ours, found.get(key))]
            table.add_row(row["name"], api, f"{ours['entries_per_s']:,.0f}", _waits(ours), *cells)
    notes = [f"{column['title']}: {column['about']}" for column in columns.values()]
    notes += [
        f"{columns[key]['title']}, {row['name']}: {one['stand_in']}"
        for row in rows
        for key, one in row.get("further", {}).items()
        if "stand_in" in one
    ]
    table.caption, table.caption_justify = "\n".join(notes), "left"
    return table


def _further_cells(ours: dict[str, Any], theirs: dict[str, Any] | None) -> tuple[str, str, str]:
    if theirs is None:
        return ("—", "—", "—")
    if "entries_per_s" not in theirs:
        return ("failed", "—", "—")
    times = ours["entries_per_s"] / theirs["entries_per_s"]
    return f"{theirs['entries_per_s']:,.0f}", f"{times:.2f}", _waits(theirs)


def _waits(side: dict[str, Any]) -> str:
    return " / ".join(f"{ms:,.{2 if ms < 10 else 1 if ms < 100 else 0}f}" for ms in (side["p50_ms"], side["p99_ms"]))


def _table(second: str, *columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("workload", second):
        table.add_column(column, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _pair(ours: dict[str, Any], theirs: dict[str, Any], name: str, digits: int) -> str:
    return " / ".join("-" if side.get(name) is None else f"{side[name]:,.{digits}f}" for side in (ours, theirs))
