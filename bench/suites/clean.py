"""Measures `mailprobe clean` on large lists: how long it takes, and its peak memory.

The command runs in its own process, against the sink's mail hosts. All addresses of a
list differ, which is the worst case for the memory of `clean`. What an address costs whose
domain and mail host are new is the difference between two lists, so that the start is left out.
"""

import csv
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import xlsxwriter
from msgspec import Struct

from ..harness.figures import Figure
from ..load.smtp_sink import SmtpSink, start_sink

HOSTS = 200
CONNECTIONS = 10
CSV_ROWS = 1_000_000
SHEET_ROWS = 1_000_000
COLD = ((5_000, 500), (30_000, 3_000))  # addresses, and domains with a host each
COMMAND = (sys.executable, "-c", "from mailprobe.api.cli import main; main()", "clean")
HEADER = ("id", "name", "email", "company", "since")


class Cleaned(Struct, frozen=True):
    """The time and the peak memory of one run."""

    wall_s: float
    cpu_s: float
    memory_mib: float


def run() -> list[Figure]:
    with (
        tempfile.TemporaryDirectory(prefix="mailprobe-bench-") as folder,
        start_sink(hosts=HOSTS) as sink,
    ):
        table, sheet = Path(folder, "list.csv"), Path(folder, "list.xlsx")
        _write_table(table, sink)
        by_text = _clean(table, Path(folder, "out.csv"), sink)
        _check_table(table, Path(folder, "out.csv"))
        _write_sheet(sheet, sink)
        by_sheet = _clean(sheet, Path(folder, "out.xlsx"), sink)
        cold_us = _cold_us(Path(folder))
    return [
        *_figures("rows of CSV", CSV_ROWS, by_text),
        *_figures("rows of XLSX", SHEET_ROWS, by_sheet),
        Figure("a cold address, ten of a domain, at the margin", cold_us, "µs of processor time"),
    ]


def _cold_us(folder: Path) -> float:
    """The processor time of an address of the longer list that the shorter one lacks."""
    (few, _), (many, hosts) = COLD
    with start_sink(hosts=hosts) as sink:
        shorter, longer = (_clean_cold(folder, sink, rows, domains) for rows, domains in COLD)
    return (longer.cpu_s - shorter.cpu_s) / (many - few) * 1e6


def _clean_cold(folder: Path, sink: SmtpSink, rows: int, domains: int) -> Cleaned:
    source = folder / f"cold-{rows}.csv"
    addresses = (f"ok{number}@{sink.domain(number % domains)}\n" for number in range(rows))
    source.write_text("email\n" + "".join(addresses), "ascii")
    return _clean(source, folder / f"cold-{rows}.out.csv", sink)


def _figures(what: str, rows: int, took: Cleaned) -> list[Figure]:
    return [
        Figure(f"{what}: end to end", rows / took.wall_s, "a second"),
        Figure(f"{what}: in all", took.wall_s, "s", cpu_us=took.cpu_s / rows * 1e6),
        Figure(f"{what}: resident memory", took.memory_mib, "MiB"),
    ]


def _row(number: int, sink: SmtpSink) -> tuple[int, str, str, str, str]:
    address = f"ok{number}@{sink.domain(number // 20)}"
    return number, f"Jürgen Müller {number}", address, "Müller, Söhne & Co", "2024-02-29"


def _write_table(path: Path, sink: SmtpSink) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        writer.writerows(_row(number, sink) for number in range(CSV_ROWS))


def _write_sheet(path: Path, sink: SmtpSink) -> None:
    with xlsxwriter.Workbook(str(path), {"constant_memory": True}) as book:
        sheet = book.add_worksheet()
        sheet.write_row(0, 0, HEADER)
        for number in range(SHEET_ROWS):
            sheet.write_row(number + 1, 0, _row(number, sink))


def _clean(source: Path, output: Path, sink: SmtpSink) -> Cleaned:
    env = {**os.environ, **sink.env, "MAILPROBE_HOST_CONNECTIONS": str(CONNECTIONS)}
    began = time.perf_counter()
    process = subprocess.Popen([*COMMAND, str(source), "-o", str(output)], env=env)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise AssertionError(f"clean ended with {process.returncode}")
    return Cleaned(
        time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
    )


def _check_table(source: Path, output: Path) -> None:
    """Check that the output has every row once, in order, with its text and a result."""
    with source.open(encoding="utf-8") as before, output.open(encoding="utf-8") as after:
        for row, cleaned in zip(before, after, strict=True):
            if not cleaned.startswith(row.rstrip("\r\n") + ","):
                raise AssertionError(f"a row was changed: {row} {cleaned}")
