"""PgBouncer in front of a PostgreSQL server, as Debian packages it."""

import os
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from mailprobe.bench.load.private_postgres import free_port
from tests.peers.programs.process import UNTIL_THE_PARENT_ENDS, WAIT_S_MAX

CONFIGURATION = """[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
logfile = {folder}/pgbouncer.log
"""


@contextmanager
def pgbouncer(folder: Path, url: str, mode: str, size: int) -> Iterator[str]:
    """Run it in the folder for the block; the value is the URL by which it takes the database."""
    at, own_port = urlsplit(url), free_port()
    database, user = at.path.strip("/"), at.username
    text = CONFIGURATION.format(
        host=at.hostname, port=at.port, own_port=own_port, mode=mode, size=size, folder=folder
    )
    text = text.replace("* = ", f"{database} = user={user} password={at.password} ", 1)
    (folder / "pgbouncer.ini").write_text(text)
    command: tuple[str | Path, ...] = ("pgbouncer", "-q", folder / "pgbouncer.ini")
    if os.geteuid() == 0:  # it refuses to run as root
        for path in (folder, *folder.parents):
            if path.stat().st_mode & stat.S_ISVTX:  # the folder of all temporary files
                break
            path.chmod(0o755)
        shutil.chown(folder, "postgres")
        command = ("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *command)
    with subprocess.Popen([*UNTIL_THE_PARENT_ENDS, *command], stderr=subprocess.DEVNULL) as process:
        try:
            taken = f"postgresql://{user}@127.0.0.1:{own_port}/{database}"
            wait_for(taken)
            yield taken
        finally:
            process.terminate()


def wait_for(url: str) -> None:
    """Wait until a connection succeeds. Fails after WAIT_S_MAX."""
    deadline = time.monotonic() + WAIT_S_MAX
    while True:
        try:
            psycopg.connect(url, connect_timeout=2).close()
        except psycopg.OperationalError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        else:
            return
