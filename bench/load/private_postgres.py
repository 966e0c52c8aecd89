"""A private PostgreSQL server on loopback, in a temporary folder; tests stop and start it.

It runs as an unprivileged user, for it refuses to run as root. Where several
versions are installed the newest is taken.
"""

import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import psycopg
from psycopg import sql

ROOT = Path("/usr/lib/postgresql")
USERS = ("postgres", "nobody")  # as root: run as the first of these that exists
TIMEOUT_S = 30.0
# Below those that the kernel gives to clients. While a server is away, one of its own clients that
# tries again could get its port, and the server could not start.
PORTS = range(20_000, 32_000)
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "autovacuum_naptime": "5s",
    "log_min_messages": "warning",
}


class NoPostgres(Exception):
    """PostgreSQL is not installed on this machine."""


@dataclass
class PrivatePostgres:
    """One cluster, and its server where it runs."""

    folder: Path
    port: int
    user: str | None  # the server's user; None: that of this process
    settings: dict[str, str]
    process: "subprocess.Popen[bytes] | None" = None
    _names: Iterator[int] = field(default_factory=count)

    @property
    def url(self) -> str:
        """The server's URL, with a user that may create databases."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgresql://mailprobe:secret@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """Create an empty database and return its URL."""
        return new_database(self.url, f"test_{next(self._names)}")

    def start(self) -> None:
        """Start the server; returns when it accepts connections."""
        options = [
            part for name, text in self.settings.items() for part in ("-c", f"{name}={text}")
        ]
        command = [program("postgres"), "-D", self.folder / "data", "-p", str(self.port), *options]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*_as(self.user), *map(str, command)], cwd="/", stdout=log, stderr=log
            )
        deadline = time.monotonic() + TIMEOUT_S
        while not self._answers():
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.02)

    def stop(self, *, gently: bool = False) -> None:
        """Stop at once, as after a power cut; with `gently` it ends its sessions first."""
        assert self.process
        # https://www.postgresql.org/docs/15/server-shutdown.html
        self.process.send_signal(signal.SIGINT if gently else signal.SIGQUIT)
        self.process.wait(TIMEOUT_S)
        self.process = None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Suspend all its processes for the block: connections stay open, without any answer."""
        assert self.process
        pids = [self.process.pid, *_children(self.process.pid)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    @property
    def output(self) -> str:
        return (self.folder / "log").read_text("utf-8", "replace")

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def private_postgres(**settings: str) -> Iterator[PrivatePostgres]:
    """Make a cluster, start it, and leave nothing of it; `settings` as in postgresql.conf.

    Raises NoPostgres.
    """
    user = _user()
    folder = Path(tempfile.mkdtemp(prefix="mailprobe-postgres-"))
    server = PrivatePostgres(folder, free_port(), user, {**SETTINGS, **settings})
    try:
        if user:
            shutil.chown(folder, user)
        password = folder / "password"
        password.write_text("secret\n")
        password.chmod(0o644)
        command = [
            program("initdb"), "--no-sync", "--pgdata", folder / "data", "--encoding", "UTF8",
            "--username", "mailprobe", "--auth", "scram-sha-256", "--pwfile", password,
            "--no-locale",
        ]  # fmt: skip
        subprocess.run([*_as(user), *map(str, command)], cwd="/", check=True, capture_output=True)
        server.start()
        yield server
    finally:
        if server.process:
            server.stop()
        shutil.rmtree(folder)


def new_database(server: str, name: str, template: str = "template1") -> str:
    """Create a database, replacing one of this name; return its URL."""
    with psycopg.connect(server, autocommit=True) as db:
        identifier = sql.Identifier(name)
        db.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(identifier))
        made = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
            identifier, sql.Identifier(template)
        )
        db.execute(made)
    return re.sub(r"^(postgres(?:ql)?://[^/?]*)(?:/[^?]*)?", rf"\1/{name}", server)


def drop_database(server: str, name: str) -> None:
    with psycopg.connect(server, autocommit=True) as db:
        db.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def free_port() -> int:
    """Return a port to serve on repeatedly, free at every address of this machine."""
    for port in random.sample(PORTS, 100):
        with socket.socket() as sock, suppress(OSError):
            sock.bind(("0.0.0.0", port))
            return port
    raise AssertionError("a hundred ports are taken")


def program(name: str) -> Path:
    found = sorted(ROOT.glob(f"*/bin/{name}"), key=lambda path: int(path.parents[1].name))
    if not found:
        raise NoPostgres(f"there is no {ROOT}/*/bin/{name}: install PostgreSQL")
    return found[-1]


def _user() -> str | None:
    if os.geteuid() != 0:
        return None
    there = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in USERS if name in there)


def _as(user: str | None) -> list[str]:
    if user is None:
        return []
    entry = pwd.getpwnam(user)
    return ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
