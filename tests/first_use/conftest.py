"""A clean Debian with nothing but Python, make and a shell, and a folder in it that is removed at the end."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from msgspec import Struct

from tests.packaging.conftest import ROOT, checkout, environment, wheel

__all__ = ["checkout", "wheel"]  # fixtures

CLEAN = ROOT / ".first-use/root"
COMMAND_S = 300.0
# What pip and the resolver need to know of this machine's network.
KNOWN = ("etc/resolv.conf", "etc/hosts", "etc/pip.conf")
# In namespaces of its own: nothing stays mounted, and no process of it is left.
ENTER = """
mount -t proc proc "$CLEAN/proc"
if [ -d "${PIP_FIND_LINKS:-}" ]; then
	mkdir -p "$CLEAN$PIP_FIND_LINKS" && mount --bind "$PIP_FIND_LINKS" "$CLEAN$PIP_FIND_LINKS"
fi
exec chroot "$CLEAN" sh -ec 'cd "$1"; shift; exec "$@"' sh "$@"
"""


class CleanMachine(Struct, frozen=True):
    """A newcomer's home on the clean machine."""

    home: Path  # as the host sees it

    def run(self, *words: str, at: str = "") -> str:
        """Run a command in a folder of the home; return what it printed, or fail with it."""
        inside = Path("/", self.home.relative_to(CLEAN))
        enter = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", ENTER, "sh")
        done = subprocess.run(
            [*enter, str(inside / at), *words],
            env={
                **environment(inside),
                "CLEAN": str(CLEAN),
                "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
                "LANG": "C.UTF-8",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_S,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}"
        return done.stdout


@pytest.fixture(scope="session")
def clean() -> Iterator[CleanMachine]:
    for name in KNOWN:
        if os.path.exists(f"/{name}"):
            shutil.copy(f"/{name}", CLEAN / name)
    shutil.copytree("/etc/ssl/certs", CLEAN / "etc/ssl/certs", dirs_exist_ok=True)
    home = CLEAN / "tmp" / uuid4().hex
    home.mkdir()
    yield CleanMachine(home)
    shutil.rmtree(home)
