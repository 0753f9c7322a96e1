"""A picture of flights and delays, day by day."""

from __future__ import annotations

from datetime import datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from bkpy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bkpy.demo.delays import DelayWindow

_AIRPORTS: Final = {"EWR": ("Newark", "#2a6fbb"), "JFK": ("Kennedy", "#c8553d"), "LGA": ("LaGuardia", "#3f8f5b")}
_AVERAGED_DAYS: Final = 7


def check_chart() -> None:
    """`ConfigError` if pictures can't be drawn here."""
    if find_spec("matplotlib") is None:
        raise ConfigError("matplotlib is missing; get it with pip install 'bkpy[demo]'")


def draw(windows: Sequence[DelayWindow], path: Path) -> None:
    """The windows, which are days, as a PNG: mean delays above, with their mean of a week, and flights below."""
    check_chart()
    from matplotlib.dates import ConciseDateFormatter, MonthLocator
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6.5), layout="constrained")
    delays, flights = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    for origin, (name, colour) in _AIRPORTS.items():
        days = [window for window in windows if window.origin == origin]
        dates = [datetime.fromisoformat(day.begins) for day in days]
        delays.plot(dates, [day.mean_delay for day in days], color=colour, alpha=0.25, linewidth=0.8)
        delays.plot(dates, _weekly(days), color=colour, linewidth=2, label=f"{name} ({origin})")
        flights.plot(dates, [day.flights for day in days], color=colour, linewidth=1)
    figure.suptitle("Flights from New York in 2013, aggregated by Spark from a log while it was written")
    delays.set_ylabel("mean departure delay, minutes\n(thin: a day, thick: the week around it)")
    delays.legend(loc="upper right", frameon=False)
    flights.set_ylabel("flights a day")
    flights.set_ylim(bottom=0)
    flights.xaxis.set_major_locator(MonthLocator())
    flights.xaxis.set_major_formatter(ConciseDateFormatter(flights.xaxis.get_major_locator()))
    for axes in (delays, flights):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
    figure.savefig(path, dpi=120)


def _weekly(days: Sequence[DelayWindow]) -> list[float]:
    """The mean delay over the flights of a week in the middle of which each day is."""
    means = []
    for i in range(len(days)):
        week = days[max(0, i - _AVERAGED_DAYS // 2) : i + _AVERAGED_DAYS // 2 + 1]
        departed = sum(day.departed for day in week)
        means.append(sum(day.delay_minutes for day in week) / departed if departed else float("nan"))
    return means
