"""Sends lists to the service: what a short one costs, and what a neighbour notices of hostile ones.

Lists as people have them are cleaned too: how many living addresses come out red.
"""

import os
import tempfile
import time
from pathlib import Path

from mailprobe.api.settings import Settings

from ...harness.figures import RESULTS, Figure
from ...lab import start_lab
from ...lab.hostile_files import files
from ...load.list_uploads import measure_lists
from ...load.people_lists import measure_people
from ...load.service_process import PLANS, ServiceProcess, start_service
from .file_attack import (
    accounts_for,
    database_octets,
    made,
    send_files,
    watching,
)

ALONE_S = 10.0
SHOWN = 3  # of the slowest files, and of failures


def run() -> list[Figure]:
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="files-", dir=RESULTS) as folder,
        start_lab() as lab,
        start_service(lab.env, Path(folder), plans=PLANS) as service,
    ):
        people = measure_people(Settings.read({**os.environ, **lab.env}), Path(folder))
        return [*people, *measure_lists(service), *measure(service)]


def measure(service: ServiceProcess) -> list[Figure]:
    hostile, database = made(list(files())), service.folder / "data/mailprobe.db"
    keys = [service.another_key() for _ in range(accounts_for(hostile))]
    with watching(service.at, service.key, service.pid) as alone:
        time.sleep(ALONE_S)
    stored = database_octets(database)
    began = time.perf_counter()
    with watching(service.at, service.key, service.pid) as beside:
        sent = send_files(service.at, keys, hostile)
    took_s = time.perf_counter() - began
    stored = database_octets(database) - stored
    for each in sorted(sent, key=lambda each: -each.took_s)[:SHOWN]:
        print(f"# {each.took_s:.1f} s: {each.hostile.name}")
    for each in sent:
        if not each.is_as_expected:
            print(f"# {each.hostile.name}: {each.status} {each.body} {each.downloads}")
    for failure in [*alone.failures, *beside.failures][:SHOWN]:
        print(f"# {failure}")
    unexpected = sum(not each.is_as_expected for each in sent)
    failures = len(alone.failures) + len(beside.failures)
    return [
        Figure("hostile files answered otherwise than expected", unexpected, f"of {len(sent)}"),
        Figure("other requests not answered", failures, f"of {len(beside.waits_ms)}"),
        Figure("alone: a neighbour's median", alone.wait_ms, "ms"),
        Figure("alone: a neighbour's longest wait", alone.wait_ms_max, "ms"),
        Figure("beside hostile files: a neighbour's median", beside.wait_ms, "ms"),
        Figure("beside hostile files: a neighbour's longest wait", beside.wait_ms_max, "ms"),
        Figure("the event loop computed in one wait, at most", beside.loop_ms_max, "ms"),
        Figure("memory grows by", beside.grown_mib, "MiB"),
        Figure(
            "the database grows by, of what was sent",
            stored / sum(each.octets for each in sent),
            "times",
        ),
        Figure("in all", took_s, "s"),
    ]
