"""Installing the peers without a network: it retries, then reports the failure in one line."""

import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
TRIES = 3


def commands(folder: Path, **texts: str) -> None:
    """Put programs into a folder that precedes the machine's own in PATH."""
    folder.mkdir()
    for name, text in texts.items():
        path = folder / name.replace("_", "-")
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)


def test_a_network_that_stays_away_is_retried_and_reported(tmp_path: Path):
    """Runs a copy, in a folder where nothing is installed yet."""
    ours = tmp_path / "tests/peers"
    ours.mkdir(parents=True)
    for name in ("able", "install"):
        shutil.copy(HERE / name, ours / name)
    log = tmp_path / "log"
    commands(
        tmp_path / "bin",
        apt_get=f'echo "$@" >>{log}; echo "E: Could not resolve packages.test"; exit 100',
        sleep="exit 0",
    )
    done = subprocess.run(
        [ours / "install"],
        env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines.count("E: Could not resolve packages.test") == TRIES
    assert lines[-1].startswith("make peers: Debian's packages could not be had")
    words = [line.split()[-1] for line in log.read_text().splitlines()]
    assert words == ["update"] * TRIES
    assert not (tmp_path / ".peers/installed").exists()
