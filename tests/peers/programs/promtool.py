"""Prometheus's promtool: checks rules, and evaluates them on given series."""

import json
import subprocess
from collections.abc import Mapping

from tests.peers.programs.process import ROOT

TIMEOUT_S = 120


def promtool(*words: str) -> None:
    """Run it in the private root. Fails if it does."""
    command = ["chroot", str(ROOT), "/usr/bin/promtool", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr


def matchers(labels: Mapping[str, str]) -> str:
    """The labels of a series as promtool's files have them."""
    return "{" + ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items()) + "}"
