"""`mailprobe completion`: real shells accept the scripts, and bash completes with its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mailprobe.api.cli import COMMANDS, main
from mailprobe.api.cli.account import TIERS

SHELLS = ("bash", "zsh", "fish")


def script_of(shell: str) -> str:
    result = CliRunner().invoke(main, ["completion", shell], prog_name="mailprobe")
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def completed_by_bash(tmp_path: Path, *words: str) -> list[str]:
    """What bash offers for the last of `words`, by the script and `mailprobe` itself."""
    program = tmp_path / "mailprobe"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nfrom mailprobe.api.cli import main\n"
        "main(prog_name='mailprobe')\n"
    )
    program.chmod(0o755)
    (tmp_path / "completion.bash").write_text(script_of("bash"))
    test = (
        'source ./completion.bash; COMP_WORDS=(mailprobe "$@"); COMP_CWORD=$#;'
        " _mailprobe_completion mailprobe; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", test, "test", *words],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_accepts_its_script(shell: str, tmp_path: Path) -> None:
    path = tmp_path / "script"
    path.write_text(script_of(shell))
    assert "_MAILPROBE_COMPLETE" in path.read_text()
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([program, "-n", str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ([""], list(COMMANDS)),
        (["ver"], ["verify"]),
        (["account", "cr"], ["create"]),
        (["account", "create", "--tier", ""], list(TIERS)),
        (["clean", "--res"], ["--resume"]),
        (["completion", ""], list(SHELLS)),
        (["help", "cl"], ["clean"]),
        (["help", "key", "cr"], ["create"]),
        (["help", "clean", ""], []),
    ],
)
def test_bash_completes(words: list[str], offered: list[str], tmp_path: Path) -> None:
    assert completed_by_bash(tmp_path, *words) == offered


@pytest.mark.parametrize("words", ["mailprobe clean ", "mailprobe clean -o "])
def test_a_file_is_completed_by_the_shell(words: str) -> None:
    env = {
        "_MAILPROBE_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    result = CliRunner().invoke(main, [], prog_name="mailprobe", env=env)
    assert result.stdout == "file,\n"


def test_a_shell_that_is_not_known_is_wrong_usage() -> None:
    assert CliRunner().invoke(main, ["completion", "tcsh"]).exit_code == 2


def test_completing_a_command_imports_none() -> None:
    script = (
        "import sys, mailprobe.api.cli\n"
        "try: mailprobe.api.cli.main([], prog_name='mailprobe')\n"
        "except SystemExit: pass\n"
        "heavy = {'trio', 'rich', 'httpx', 'mailprobe.engine', 'mailprobe.api.cli.verify'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    completing = {"_MAILPROBE_COMPLETE": "bash_complete", "COMP_WORDS": "mailprobe ve"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | completing | {"COMP_CWORD": "1"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "plain,verify\n", "")
