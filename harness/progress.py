"""Live progress of a run: a bar on a terminal, one plain line a case elsewhere."""

import time
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column

from harness.table import time_us

PLAIN_WIDTH = 110  # of tables in a file or a pipe


def open_console() -> Console:
    """Standard output; tables get a fixed width where it is no terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    return console


class Reporter:
    """Says what a run is doing. Messages go above the bar; without a terminal everything is a plain line."""

    def __init__(self, console: Console | None = None):
        self.console = console or open_console()
        self._live = self.console.is_terminal
        self._progress = None
        self._done, self._total, self._began = 0, 0, None
        self._done_s, self._total_s = 0.0, 0.0

    def say(self, message: str) -> None:
        """One message of the run itself."""
        self.console.print(message, markup=False, soft_wrap=not self._live)

    def start(self, total: int, total_s: float, what: str = "cases") -> None:
        """Begin a stretch of `total` steps, guessed to take `total_s` seconds; only shares of it count."""
        self._done, self._total, self._began = 0, total, None
        self._done_s, self._total_s = 0.0, total_s
        if self._live:
            self._progress = Progress(
                SpinnerColumn(),
                MofNCompleteColumn(),
                TextColumn(what),
                BarColumn(24),
                TimeElapsedColumn(),
                TextColumn("{task.fields[left]}"),
                TextColumn("[bold]{task.description}", table_column=Column(ratio=1, no_wrap=True)),
                console=self.console,
                transient=True,
                expand=True,  # a long name is cut, and not the figures before it
            )
            self._progress.start()
            self._task = self._progress.add_task("", total=total, left="")

    def begin(self, name: str) -> None:
        """The step that is running now. Time is counted from the first one: what comes before is not like the rest."""
        self._began = self._began or time.monotonic()
        if self._progress:
            self._progress.update(self._task, description=name)

    def finish(self, name: str, rows: list[dict[str, Any]], about_s: float) -> None:
        """A step that was guessed to take `about_s` is done, with these rows: the plain line, or the bar moves on.
        Failures are always shown."""
        self._done, self._done_s = self._done + 1, self._done_s + about_s
        line = (
            f"[{self._done:>{len(str(self._total))}}/{self._total}] {name}: {outcome(rows)}; {self._left()}"
        )
        if self._progress is None:
            self.say(line)
            return
        self._progress.update(self._task, advance=1, left=self._left())
        if any(row["status"] not in ("OK", "SKIPPED") for row in rows):
            self._progress.print(line.rsplit(";", 1)[0], markup=False)

    def stop(self) -> None:
        """Take the bar away."""
        if self._progress:
            self._progress.stop()
            self._progress = None

    def _left(self) -> str:
        spent = time.monotonic() - self._began
        seconds = round(spent / self._done_s * max(self._total_s - self._done_s, 0.0))
        return (
            f"{seconds // 60}:{seconds % 60:02} left" if self._done < self._total else f"{spent:.0f} s in all"
        )


def _duration(us: float) -> str:
    return f"{us:.4g} µs" if us < 10_000 else f"{us / 1000:.4g} ms"


def outcome(rows: list[dict[str, Any]]) -> str:
    """What a case gave, in a few words: "optimized 33.1 µs 97 %, reference 402 µs"."""
    words = []
    for row in rows:
        took = time_us(row)
        figure = f" {_duration(took)}" if took else ""
        limit = f" {row['percent_of_limit']:.0f} %" if row["percent_of_limit"] else ""
        status = "" if row["status"] == "OK" and took else f" {row['status']}"
        words.append(f"{row['implementation']}{figure}{limit}{status}")
    return ", ".join(words) or "nothing new"
