"""`mailprobe` itself: quick to help, and its exit codes."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from api.cli import COMMANDS, main


def test_help_names_every_command_and_imports_none() -> None:
    script = (
        "import sys, api.cli\n"
        "try: api.cli.main(['--help'], prog_name='mailprobe')\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'trio', 'rich', 'httpx', 'engine', 'dataclasses', 'api.cli.verify'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("command", ["verify", "clean", "demo"])
def test_a_commands_help_imports_no_engine(command: str) -> None:
    script = (
        "import sys, api.cli\n"
        f"try: api.cli.main(['{command}', '--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'trio', 'rich', 'httpx', 'engine'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_version_is_said() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert result.exit_code == 0
    assert "version" in result.output


def test_an_unknown_command_is_wrong_usage() -> None:
    assert CliRunner().invoke(main, ["nope"]).exit_code == 2
