"""The `mailprobe` command: a fast `--help`, and its exit codes."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mailprobe.api.cli import COMMANDS, main


def test_help_names_every_command_and_imports_none() -> None:
    script = (
        "import sys, mailprobe.api.cli\n"
        "try: mailprobe.api.cli.main(['--help'], prog_name='mailprobe')\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'trio', 'rich', 'httpx', 'mailprobe.engine', 'dataclasses', 'mailprobe.api.cli.verify'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("command", ["verify", "clean", "demo"])
def test_a_commands_help_imports_no_engine(command: str) -> None:
    script = (
        "import sys, mailprobe.api.cli\n"
        f"try: mailprobe.api.cli.main(['{command}', '--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'trio', 'rich', 'httpx', 'mailprobe.engine'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_version_is_said() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert result.exit_code == 0
    assert "version" in result.output


@pytest.mark.parametrize(
    "group",
    ["account", "key", "job", "list", "egress", "config", "lists", "bench"],
)
def test_no_summary_of_a_command_is_cut(group: str) -> None:
    _, _, commands = CliRunner().invoke(main, [group, "--help"]).output.partition("Commands:")
    assert "\n  " in commands
    assert not [line for line in commands.splitlines() if line.endswith("...")]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("clean {}", 2),
        ("clean list.csv -o {}", 2),
        ("clean list.csv -o - --report {}", 2),
        ("backup {}.backup", 1),
        ("restore {}", 1),
        ("migrate --from {} --to postgresql:///mailprobe", 1),
        ("account list", 1),
        ("migrate --check", 1),
        ("bench wire --results {}", 1),
    ],
)
def test_a_path_that_cannot_be_used_is_named_in_one_line(
    words: str, code: int, tmp_path: Path
) -> None:
    """The path stands for one in a folder that the user may not enter, for root may enter any."""
    (tmp_path / "list.csv").write_text("ann@example.org\n")
    unusable = "x" * 256
    given = words.replace("list.csv", str(tmp_path / "list.csv")).format(tmp_path / unusable)
    env = {"MAILPROBE_DATABASE": str(tmp_path / unusable), "MAILPROBE_TOOLS_BIND": ""}
    result = CliRunner().invoke(main, given.split(), env=env)
    assert result.exit_code == code, result.output
    lines = [line for line in result.stderr.splitlines() if unusable in line]
    assert len(lines) == 1
    assert "File name too long" in lines[0]
    assert "Errno" not in result.stderr


def test_an_unknown_command_is_wrong_usage() -> None:
    assert CliRunner().invoke(main, ["nope"]).exit_code == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nope"], "no such command 'nope' (see mailprobe --help)"),
        (["claen"], "no such command 'claen'. Did you mean 'clean'? (see mailprobe --help)"),
        (["ann@shop.test"], "no such command 'ann@shop.test'. Did you mean: mailprobe verify ann@"),
        ([__file__], f"no such command {__file__!r}. Did you mean: mailprobe clean /"),
        (["clean", "ann@shop.test"], "there is no file ann@shop.test; to verify an address: mailp"),
        (["verify"], "missing argument 'ADDRESS...' (see mailprobe verify --help)"),
        (["verify", "--wwww"], "no such option '--wwww' (see mailprobe verify --help)"),
        (["serve", "--workers", "x"], "invalid value for '--workers': 'x' is not a valid integer"),
        (["help", "claen"], "no such command 'claen'. Did you mean 'clean'?"),
        (["help", "key", "nope"], "no such command 'nope' (see mailprobe key --help)"),
        (["help", "verify", "ann"], "'mailprobe verify' has no commands of its own, such as 'ann'"),
        (["serve", "--port", "x"], "invalid value for '--port': 'x': expected a port, 0 to 65535"),
        (["serve", "--port=99999"], "invalid value for '--port': '99999': expected a port, 0 to"),
        (
            ["serve", "--bind", "0.0.0.0:80", "--port", "90"],
            "--bind has a port, too: give --bind 0.0.0.0:90 alone",
        ),
        (["bench", "nope"], "no suite 'nope'; there are: "),
        (
            ["lab", "--scenario", "nope"],
            "invalid value for --scenario: there is no scenario 'nope'; take ",
        ),
    ],
)
def test_wrong_usage_is_reported_like_any_other_error(words: list[str], said: str) -> None:
    result = CliRunner().invoke(main, words, prog_name="mailprobe")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"mailprobe: {said}")
    assert result.stderr.count("\n") == 1


def test_no_command_at_all_shows_the_help() -> None:
    result = CliRunner().invoke(main, [], prog_name="mailprobe")
    assert "Usage: mailprobe" in result.output
    assert all(name in result.output for name in COMMANDS)
