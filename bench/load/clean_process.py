"""`mailprobe clean` in a process of its own, for the bench: started, killed, resumed, its rows read."""

import csv
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..harness.confusion import ReportedAddress, unanswered
from .service_process import MAILPROBE, ROOT

INTERRUPT_S = 30.0  # from a Ctrl-C to the end of the process
POLL_S = 0.02


class CleanProcess:
    """One list, and the runs of `clean` over it. Its files are in `folder`."""

    def __init__(
        self, env: Mapping[str, str], folder: Path, texts: Sequence[str], *options: str
    ) -> None:
        self._texts = texts
        self._folder = folder
        self._options = options
        ours = {k: text for k, text in os.environ.items() if not k.startswith("MAILPROBE_")}
        self._env = {**ours, **env, "PYTHONPATH": str(ROOT)}
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "list.csv").write_text(
            "email\n" + "".join(f"{text}\n" for text in texts), "utf-8"
        )

    def start(self, *, resume: bool = False) -> None:
        more = ["--resume"] if resume else []
        with (self._folder / "clean.log").open("ab") as said:
            self._process = subprocess.Popen(
                [*MAILPROBE, "clean", "list.csv", "-o", "out.csv", *self._options, *more],
                cwd=self._folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,  # a Ctrl-C is for the bench, which then ends it
            )

    def kill_after(self, answers: int, within_s: float) -> None:
        """SIGKILL it once it has so many answers. Raises AssertionError if it ends before."""
        assert self._process is not None
        ends_at = time.monotonic() + within_s
        while sum(1 for _ in self._kept()) < answers:
            if self._process.poll() is not None or time.monotonic() > ends_at:
                raise AssertionError(f"clean did not get {answers} answers: {self._log()}")
            time.sleep(POLL_S)
        self._process.kill()
        self._process.wait()

    def wait(self, within_s: float) -> None:
        """Wait for its end; after this time interrupt it, so that it keeps what it knows."""
        assert self._process is not None
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            print(f"# clean was interrupted after {within_s:g} s")
            self._process.send_signal(signal.SIGINT)
            self._process.wait(INTERRUPT_S)
        else:
            if self._process.returncode:
                raise AssertionError(f"clean failed: {self._log()}")

    def stop(self) -> None:
        """End it, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def results(self) -> list[ReportedAddress]:
        """Each address of the list with what is known of it, in order."""
        output = self._folder / "out.csv"
        if output.exists():
            with output.open(encoding="utf-8", newline="") as file:
                rows: list[dict[str, str]] = list(csv.DictReader(file))
            if [row["email"] for row in rows] != list(self._texts):
                raise AssertionError("clean has not written each row once, in order")
        else:
            rows = list(self._kept())
        known = {
            row["email"]: ReportedAddress(row["email"], row["status"], row["reason"])
            for row in rows
            if row["status"]
        }
        return [known.get(text) or unanswered(text) for text in self._texts]

    def _kept(self) -> Iterator[dict[str, str]]:
        """The whole lines of the journal, without its first one."""
        journal = self._folder / "out.csv.journal"
        octets = journal.read_bytes() if journal.exists() else b""
        for line in octets.split(b"\n")[1:-1]:
            yield json.loads(line)

    def _log(self) -> str:
        return (self._folder / "clean.log").read_text("utf-8")
