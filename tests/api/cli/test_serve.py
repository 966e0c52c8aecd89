"""`mailprobe serve` in its own process, on real sockets: start, requests and stop."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from mailprobe.api.cli.serve import _announce
from mailprobe.api.doctor.named_sender import WITHOUT_A_SENDER
from mailprobe.api.errors import CommandError
from mailprobe.api.serve import Listeners, links_of
from mailprobe.api.settings import Settings
from mailprobe.api.starting.database import DATABASE_WAIT_S, await_database
from mailprobe.bench.lab import Lab
from mailprobe.release import commit, version
from mailprobe.storage import schema_state
from mailprobe.storage.contract import StoreBroken, StoreUnavailable
from tests import warm_process
from tests.api.cli.test_clean import ROOT, rows_of
from tests.warm_lab import start_lab
from tests.warm_process import WarmProcess

COMMAND = [
    sys.executable,
    "-c",
    "import sys; from mailprobe.api.cli import main; main(sys.argv[1:])",
]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with start_lab() as lab:
        yield lab


@dataclass
class Served:
    """A running service, and its output so far."""

    url: str
    process: "subprocess.Popen[str]"
    said: str

    def stop(self) -> str:
        """Send SIGTERM, expect a clean end, and return the whole output."""
        self.process.send_signal(signal.SIGTERM)
        _, rest = self.process.communicate(timeout=20)
        assert self.process.returncode == 0, self.said + rest
        return self.said + rest


def environment(place: Path, lab: Lab | None = None) -> dict[str, str]:
    ours = {name: text for name, text in os.environ.items() if not name.startswith("MAILPROBE_")}
    return {
        **ours,
        **(lab.env if lab else {}),
        "MAILPROBE_TOOLS_BIND": "127.0.0.1:0",
        "PYTHONPATH": str(ROOT),
        "HOME": str(place),
    }


LOST = """
import os, signal, sys, weakref

class Sender:
    # An interrupt in a callback of importlib is ignored by Python; this one is of the same kind.
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            class Held: pass
            held = Held()
            reference = weakref.ref(held, lambda _: os.kill(os.getpid(), signal.SIGINT))
            del held

sys.meta_path.insert(0, Sender())
from mailprobe.api.cli import main
main(sys.argv[2:])
"""


@pytest.mark.parametrize(
    "module",
    [
        f"mailprobe.{name}"
        for name in ("api.serve", "api.workers", "api.watchdog", "engine.dns.doh")
    ],
)
def test_a_ctrl_c_while_a_module_is_imported_ends_a_start(tmp_path: Path, module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOST, module, "serve", "--bind", "127.0.0.1:0"],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "")


@contextmanager
def served(place: Path, lab: Lab, *words: str) -> Iterator[Served]:
    process = WarmProcess(
        ["mailprobe.api.cli", "serve", "--bind", "127.0.0.1:0", *words],
        cwd=place,
        env=environment(place, lab),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr
    try:
        said = ""
        for line in process.stderr:
            said += line
            if found := re.search(r"serving on (http://\S+?),? ", line):
                yield Served(found[1], process, said)
                break
        else:
            raise AssertionError(said)
    finally:
        process.kill()
        process.communicate()


def mailprobe(
    place: Path, *words: str, lab: Lab | None = None
) -> "subprocess.CompletedProcess[str]":
    return warm_process.run(
        ["mailprobe.api.cli", *words],
        cwd=place,
        env=environment(place, lab),
        capture_output=True,
        text=True,
    )


def make_account(place: Path, tier: str = "builder") -> Any:
    words = ["account", "create", "--email", "ann@example.org", "--tier", tier]
    done = mailprobe(place, *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_serve_accepts_an_account_made_while_it_runs_and_ends_on_sigterm(
    tmp_path: Path, lab: Lab, workers: str
) -> None:
    address = lab.addresses["deliverable"][0]
    with served(tmp_path, lab, "--workers", workers) as service:
        assert "mailprobe account create" in service.said  # there is no account yet
        account = make_account(tmp_path)
        with httpx.Client(base_url=service.url, trust_env=False) as client:
            health = client.get("/health")
            assert health.json().keys() == {"ok", "ts"}
            assert health.json()["ok"] is True
            shown = [
                health.headers[f"mailprobe-{name}"] for name in ("version", "commit", "schema")
            ]
            assert shown == [version(), commit(), str(schema_state(str(tmp_path / "no.db")).known)]
            headers = {"Authorization": f"Bearer {account['key']}"}
            got = client.post("/v1/email/verify", json={"email": address}, headers=headers)
            assert (got.status_code, got.json()["status"]) == (200, "deliverable")
            wrong = client.post("/v1/email/verify", json={"email": address})
            assert wrong.json()["docs"].startswith(f"{service.url}/docs/api#")
            owner = {"Authorization": f"Bearer {account['provisioning_key']}"}
            summary = client.get("/v1/management/usage/summary", headers=owner).json()
            assert summary["calls_used"] == 1
        said = service.stop()
    assert "Traceback" not in said
    assert account["key"] not in said
    with served(tmp_path, lab) as service:
        assert "account create" not in service.said
        service.stop()


def test_a_list_is_cleaned_through_it(tmp_path: Path, lab: Lab) -> None:
    texts = [text for some in lab.addresses.values() for text in some[:3]][:40]
    (tmp_path / "list.txt").write_text("".join(f"{text}\n" for text in texts))
    with served(tmp_path, lab) as service:
        key = make_account(tmp_path, "scale")["key"]
        words = [
            "clean",
            "list.txt",
            "--recheck",
            "0",
            "-o",
            "out.csv",
            "--server",
            service.url,
            "--key",
            key,
        ]
        done = mailprobe(tmp_path, *words)
        assert done.returncode == 0, done.stderr
        service.stop()
    rows = rows_of(tmp_path / "out.csv")
    assert len(rows) == len(texts)
    assert all(row["status"] for row in rows)
    assert {"deliverable", "undeliverable"} < {row["status"] for row in rows}


def test_the_database_is_its_owners_alone(tmp_path: Path, lab: Lab) -> None:
    with served(tmp_path, lab) as service:
        service.stop()
    for name in ("mailprobe.db", "mailprobe.db.key"):
        assert stat.S_IMODE((tmp_path / "data" / name).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("option", "whose"), [("--bind", ""), ("--tools-bind", " for the tool server")]
)
def test_a_busy_port_is_one_line(tmp_path: Path, option: str, whose: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        free = () if option == "--bind" else ("--bind", "127.0.0.1:0")
        done = mailprobe(tmp_path, "serve", option, bind, *free)
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"mailprobe: {bind} cannot be listened on{whose}: Address already in use; name another "
        f"address with {option}"
    )
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("written", [["--port={}"], ["--port", "{}"]])
def test_a_port_of_the_command_line_wins_over_the_environment(
    tmp_path: Path, written: list[str]
) -> None:
    """The address stays that of the setting; a busy port shows both without a service."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = warm_process.run(
            ["mailprobe.api.cli", "serve", *(word.format(port) for word in written)],
            cwd=tmp_path,
            env={**environment(tmp_path), "MAILPROBE_BIND": "127.0.0.1:0"},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 2
    assert done.stderr == (
        f"mailprobe: 127.0.0.1:{port} cannot be listened on: Address already in use; name another "
        "address with --bind or --port\n"
    )


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_foreign_database_file_is_one_line(tmp_path: Path, workers: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/mailprobe.db").write_text("hello")
    done = mailprobe(tmp_path, "serve", "--bind", "127.0.0.1:0", "--workers", workers)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "mailprobe.db" in done.stderr


def test_a_database_path_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "mailprobe.toml").write_text(f'database = "{"x" * 256}"')
    done = mailprobe(tmp_path, "serve", "--bind", "127.0.0.1:0")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "File name too long" in done.stderr
    assert "Errno" not in done.stderr


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ('bind = "nowhere"', []),
        ('plans_file = "missing.toml"', []),
        ('plans_file = "mailprobe.toml/below"', []),
        ('plans_file = "."', []),
        ('secret_key = "c2hvcnQ="', []),
        ('database = "postgresql://db.test/x"', []),
        ("", ["--bind", "127.0.0.1:99999"]),
        ("", ["--workers", "0"]),
    ],
)
def test_a_wrong_setting_ends_the_start(tmp_path: Path, toml: str, words: list[str]) -> None:
    (tmp_path / "mailprobe.toml").write_text(toml)
    done = mailprobe(tmp_path, "serve", *words)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    if toml:
        assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "data").exists()


def test_the_public_addresses_are_the_operators_or_made_from_the_bind(tmp_path: Path) -> None:
    places = links_of(Settings.read({"MAILPROBE_BIND": "0.0.0.0:80"}, tmp_path))
    assert places.base_url == "http://127.0.0.1:80"
    assert places.docs_url == "http://127.0.0.1:80/docs/api"
    said = {
        "MAILPROBE_BASE_URL": "https://api.test/",
        "MAILPROBE_DOCS_URL": "https://docs.test",
        "MAILPROBE_DASHBOARD_URL": "https://dash.test",
    }
    places = links_of(Settings.read(said, tmp_path))
    assert (places.base_url, places.docs_url) == ("https://api.test", "https://docs.test")
    assert places.dashboard_url == "https://dash.test"


@pytest.mark.parametrize("environ", [{}, {"MAILPROBE_SMTP_MAIL_FROM": "probe@shop.test"}])
def test_the_log_begins_with_what_a_named_sender_needs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, environ: dict[str, str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        _announce(Settings.read(environ, tmp_path), Listeners([bound]), 1)
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == ([] if environ else [WITHOUT_A_SENDER])


@pytest.mark.parametrize(
    ("failures", "ends_with"),
    [
        ([], None),
        ([StoreUnavailable("refused")] * 59, None),
        ([StoreUnavailable("refused")] * 100, "refused"),
        ([StoreUnavailable("refused"), StoreBroken("another password")], None),
    ],
)
def test_a_start_waits_a_minute_for_postgresql(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failures: list[StoreUnavailable],
    ends_with: str | None,
) -> None:
    """What is broken is said by the opening of the store, at once."""
    clock, left = [0.0], list(failures)

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    def schema_state(_: str) -> None:
        if left:
            raise left.pop(0)

    monkeypatch.setattr(
        "mailprobe.api.starting.database.time",
        SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep),
    )
    monkeypatch.setattr("mailprobe.storage.schema_state", schema_state)
    with pytest.raises(CommandError, match=ends_with) if ends_with else nullcontext():
        await_database("postgresql://db.test/x")
    assert clock[0] <= DATABASE_WAIT_S
    waiting = [record for record in caplog.records if "waiting for the database" in record.message]
    assert len(waiting) == bool(failures)
