"""Bringing the peers where the network is away: tried again, and then said in a line."""

import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
TRIES = 3


def commands(folder: Path, **texts: str) -> None:
    """Programs that stand before the machine's own."""
    folder.mkdir()
    for name, text in texts.items():
        path = folder / name.replace("_", "-")
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)


def test_a_network_that_stays_away_is_tried_again_and_told(tmp_path: Path):
    """A copy is run, which knows of nothing that is there already."""
    ours = tmp_path / "tests/peers"
    ours.mkdir(parents=True)
    for name in ("able", "install"):
        shutil.copy(HERE / name, ours / name)
    asked = tmp_path / "asked"
    commands(
        tmp_path / "bin",
        apt_get=f'echo "$@" >>{asked}; echo "E: Could not resolve packages.test"; exit 100',
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
    words = [line.split()[-1] for line in asked.read_text().splitlines()]
    assert words == ["update"] * TRIES
    assert not (tmp_path / ".peers/installed").exists()
