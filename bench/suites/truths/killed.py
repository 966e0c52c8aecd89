"""Kills a list in the middle, and compares it with the same list that was not killed.

Once as a job of `mailprobe serve` with its embedded store, which is started again at once,
and once as `mailprobe clean`, which is resumed. No verdict may be worse for it.
"""

import csv
import io
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx

from ...harness.confusion import (
    REPORTED,
    KnownTruth,
    Matrix,
    ReportedAddress,
    remarks,
    unanswered,
)
from ...harness.figures import RESULTS, Figure
from ...lab import Lab
from ...load.clean_process import CleanProcess
from ...load.service_process import PLANS, ServiceProcess, start_service
from .runs import PATIENCE_S

ROWS = 2_000
KILLED_AT = 1_000  # answers
LIST_S = 90.0
POLL_S = 0.05


def killed_figures(
    lab: Lab, known: KnownTruth, kind_of: Callable[[str], str], texts: Sequence[str]
) -> list[Figure]:
    """Both comparisons, over the first ROWS of these addresses of the lab."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    rows = texts[:ROWS]
    figures: list[Figure] = []
    for who, run in (("serve", _serve), ("clean", _clean)):
        measured = []
        for is_killed in (False, True):
            lab.forget()
            began = time.perf_counter()
            with tempfile.TemporaryDirectory(prefix="killed-", dir=RESULTS) as folder:
                reported = run(lab, Path(folder), rows, is_killed)
            measured.append((Matrix.of(known, reported), time.perf_counter() - began))
            how = "killed" if is_killed else "not killed"
            for remark in remarks(known, kind_of, reported):
                print(f"# {who}, {how}: {remark}")
        (whole, whole_s), (killed, killed_s) = measured
        print(f"# {who}: unknown: {_unknown(whole)}; killed in the middle: {_unknown(killed)}")
        asked = f"of {len(rows):,}"
        more = max(0, killed.unknown_count(knowable=True) - whole.unknown_count(knowable=True))
        figures += [
            Figure(f"{who} killed: more unknown than not killed", more, asked),
            Figure(f"{who} killed: wrong verdicts", killed.lies(*REPORTED), asked),
            Figure(f"{who} not killed: in all", whole_s, "s"),
            Figure(f"{who} killed: in all", killed_s, "s"),
        ]
    return figures


def _unknown(matrix: Matrix) -> str:
    hidden = matrix.unknown_count(knowable=False)
    return f"{matrix.unknown_count(knowable=True)} that could be known, {hidden} hidden"


def _clean(lab: Lab, folder: Path, rows: Sequence[str], is_killed: bool) -> list[ReportedAddress]:
    options = (*("--recheck", "1", "--recheck-after", "1s"), *("--patience", f"{PATIENCE_S}s"))
    cleaning = CleanProcess(lab.env, folder, rows, *options)
    try:
        cleaning.start()
        if is_killed:
            cleaning.kill_after(KILLED_AT, LIST_S)
            cleaning.start(resume=True)
        cleaning.wait(LIST_S)
        return cleaning.results()
    finally:
        cleaning.stop()


def _serve(lab: Lab, folder: Path, rows: Sequence[str], is_killed: bool) -> list[ReportedAddress]:
    with start_service(lab.env, folder, plans=PLANS) as service:
        list_id = _upload(service, rows)
        if not is_killed:
            return _results(service, list_id, rows)
        _wait(service, list_id, KILLED_AT)
        service.kill()
    with start_service(lab.env, folder, plans=PLANS, account=service.account) as service:
        return _results(service, list_id, rows)


def _client(service: ServiceProcess) -> httpx.Client:
    headers = {"Authorization": f"Bearer {service.key}"}
    return httpx.Client(base_url=service.url, headers=headers, trust_env=False, timeout=30)


def _upload(service: ServiceProcess, rows: Sequence[str]) -> str:
    content = "email\n" + "\n".join(rows) + "\n"
    with _client(service) as client:
        response = client.post(
            "/v1/lists",
            params={"patience_s": PATIENCE_S},
            content=content,
            headers={"Content-Type": "text/csv"},
        )
        list_id: str = response.raise_for_status().json()["list_id"]
    return list_id


def _wait(service: ServiceProcess, list_id: str, answers: int | None) -> None:
    """Wait until the list has so many answers, or is done; at most LIST_S."""
    ends_at = time.monotonic() + LIST_S
    with _client(service) as client:
        while time.monotonic() < ends_at:
            response = client.get(f"/v1/lists/{list_id}")
            state: dict[str, Any] = response.raise_for_status().json()
            if state["status"] == "done" or (answers is not None and state["answered"] >= answers):
                return
            time.sleep(POLL_S)
    print(f"# the list is not done after {LIST_S:g} s: {state}")


def _results(service: ServiceProcess, list_id: str, rows: Sequence[str]) -> list[ReportedAddress]:
    """The rows of the list, once it is done."""
    _wait(service, list_id, None)
    with _client(service) as client:
        response = client.get(f"/v1/lists/{list_id}/results", params={"format": "csv"})
    found = list(csv.DictReader(io.StringIO(response.raise_for_status().text)))
    if [row["email"] for row in found] != list(rows):
        raise AssertionError("the results have not each row once, in order")
    return [
        ReportedAddress(row["email"], row["status"], row["reason"])
        if row["status"]
        else unanswered(row["email"])
        for row in found
    ]
