"""The systemd unit: hardened, one instance for each port, and installed as its head says."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mailprobe.api.cli import COMMANDS
from mailprobe.api.settings import Settings
from tests.deploy.files import ROOT, STOPPING_S, UNIT_FILE

TEXT = UNIT_FILE.read_text("utf-8")
HARDENED = {
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "MemoryDenyWriteExecute": "yes",
    "RestrictNamespaces": "yes",
    "SystemCallArchitectures": "native",
    "UMask": "0077",
    "StateDirectoryMode": "0700",
}
EXPOSURE_MAX = 2.0  # of 10, by systemd-analyze security; 1.4 with systemd 252
ANALYZE = shutil.which("systemd-analyze")


def sections(text: str) -> dict[str, dict[str, list[str]]]:
    """By section and name, each value that is given."""
    found: dict[str, dict[str, list[str]]] = {}
    inside: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("["):
            inside = found.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            inside.setdefault(name, []).append(value)
    return found


SERVICE = sections(TEXT)["Service"]


def test_the_unit_runs_the_service_and_allows_it_little() -> None:
    assert {name: SERVICE[name] for name in HARDENED} == {
        name: [value] for name, value in HARDENED.items()
    }
    (command,) = SERVICE["ExecStart"]
    program, *words = command.split()
    assert (Path(program).name, words) == ("mailprobe", ["serve"])
    assert words[0] in COMMANDS
    assert SERVICE["SystemCallFilter"][0] == "@system-service"
    assert int(SERVICE["TimeoutStopSec"][0]) > STOPPING_S
    assert SERVICE["RestartPreventExitStatus"] == ["2"]
    assert SERVICE["MemoryMax"] != ["infinity"]
    assert int(SERVICE["LimitNOFILE"][0]) > 5000  # for a process: docs/deployment.md
    assert SERVICE["WorkingDirectory"] == [f"/var/lib/{SERVICE['StateDirectory'][0]}"]
    assert SERVICE["User"] != ["root"]


def test_an_instance_is_a_port_and_its_files_override_the_unit() -> None:
    """systemd reads `Environment=` first, then the files in order; the last value of a name wins."""
    environment = dict(
        value.replace("%i", "8082").split("=", 1) for value in SERVICE["Environment"]
    )
    settings = Settings.read(environment, Path("/nowhere"))
    assert (settings.bind.port, settings.tools_bind) == (8082, None)
    assert SERVICE["EnvironmentFile"] == [
        "/etc/mailprobe/mailprobe.env",
        "-/etc/mailprobe/%i.env",  # it may be absent
    ]


def test_the_head_says_how_to_install_what_the_unit_needs() -> None:
    head = TEXT.partition("[Unit]")[0]
    commands = re.findall(r"^#   (.+)$", head, re.MULTILINE)
    text = "\n".join(commands)
    program = SERVICE["ExecStart"][0].split()[0]
    environment = Path(program).parents[1]
    assert f"python3 -m venv {environment}" in commands
    assert f"{environment}/bin/pip install --require-hashes -r requirements.lock" in commands
    for need in (SERVICE["User"][0], SERVICE["EnvironmentFile"][0], SERVICE["WorkingDirectory"][0]):
        assert need in text
    assert f"deploy/{UNIT_FILE.name} /etc/systemd/system/" in text
    assert commands[-1] == "systemctl enable --now mailprobe@8080"
    assert all(
        (ROOT / name).exists() for name in re.findall(r"requirements\.lock|deploy/\S+", text)
    )


@pytest.mark.skipif(ANALYZE is None, reason="this machine has no systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program = tmp_path / "mailprobe"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / UNIT_FILE.name
    unit.write_text(TEXT.replace(SERVICE["ExecStart"][0].split()[0], str(program)))
    assert ANALYZE is not None
    done = subprocess.run([ANALYZE, "verify", unit], capture_output=True, text=True)
    own = [line for line in done.stderr.splitlines() if "mailprobe" in line]
    assert (own, done.returncode) == ([], 0)


@pytest.mark.skipif(ANALYZE is None, reason="this machine has no systemd-analyze")
def test_systemd_finds_the_unit_little_exposed(tmp_path: Path) -> None:
    assert ANALYZE is not None
    done = subprocess.run(
        [ANALYZE, "security", "--offline=true", f"--threshold={EXPOSURE_MAX * 10:.0f}", UNIT_FILE],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-200:] + done.stderr
