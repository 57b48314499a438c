"""A figure, its goal, and the table they are printed in."""

import os
import platform
import sys
from dataclasses import dataclass

WIDTH = 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A line of the table; `small` says what the figure was made of."""

    name: str
    value: float
    unit: str = "x"
    goal: float | None = None
    small: tuple[str, ...] = ()
    drawn: tuple[str, dict[str, float]] | None = None  # (the picture, the figures drawn there)

    @property
    def verdict(self) -> str:
        """Return `ok`, `MISS`, or nothing where there is no goal."""
        if self.goal is None:
            return ""
        return "ok" if self.value <= self.goal else "MISS"

    def lines(self) -> list[str]:
        """Return the line and its small print."""
        goal = "" if self.goal is None else f"<= {_figure(self.goal, self.unit)}"
        head = f"{self.name:<{WIDTH}} {_figure(self.value, self.unit):>12} {goal:>11}  {self.verdict}"
        return [head.rstrip(), *(f"    {line}" for line in self.small)]


def absent(name: str, why: str) -> Result:
    """Return the line of a figure that could not be taken here, with what refused."""
    return Result(name=name, value=float("nan"), small=(f"not taken: {why}",))


def _figure(value: float, unit: str) -> str:
    return f"{value:,.0f}" if unit == "" else f"{value:,.0f}{unit}" if unit == "/s" else f"{value:.3g} {unit}"


def machine(load_before: float) -> str:
    """Return the machine and its load: the one-minute average before and after."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    load = f"load {load_before:.2f} before, {os.getloadavg()[0]:.2f} after"
    return f"{python}, {platform.system()} {platform.release()}, {os.cpu_count()} cores, {load}"


def table(results: list[Result], load_before: float) -> str:
    """Return the whole table as text."""
    head = f"{'measurement':<{WIDTH}} {'figure':>12} {'goal':>11}"
    lines = [head, "-" * len(head), *(line for result in results for line in result.lines())]
    command = " ".join(["python -m bench", *sys.argv[1:]])
    return "\n".join([*lines, "", f"command: {command}", f"machine: {machine(load_before)}"])
