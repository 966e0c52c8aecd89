"""Every command's help: examples, exit codes, plain lines; and the manual page made from it."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import click
import pytest
from click.testing import CliRunner

from mailprobe.api.cli import COMMANDS, main
from mailprobe.api.cli.shell.examples import EXAMPLES
from mailprobe.api.cli.shell.manual import manual
from mailprobe.bench.lab import SCENARIO_NAMES

ROOT = Path(__file__).parents[4]


def commands() -> Iterator[tuple[str, click.Command]]:
    def within(words: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
        yield words, command
        if isinstance(command, click.Group):
            for name, inner in command.commands.items():
                yield from within(f"{words} {name}", inner)

    yield "", main
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        assert command is not None
        yield from within(name, command)


ALL = dict(commands())


def help_of(words: str) -> str:
    done = CliRunner().invoke(main, [*words.split(), "--help"], terminal_width=80)
    assert done.exit_code == 0
    return done.output


def test_every_command_has_examples_and_no_other_has() -> None:
    assert set(EXAMPLES) == set(ALL)


@pytest.mark.parametrize("words", ALL)
def test_a_help_page_ends_with_examples_and_exit_codes_and_fits_80_columns(words: str) -> None:
    page = help_of(words)
    assert re.search(r"\n  Examples:\n    .+\n\n  Exit codes:\n    0 .+\n$", page, re.DOTALL)
    assert max(map(len, page.splitlines())) <= 80


@pytest.mark.parametrize("words", ALL)
def test_every_option_says_what_it_does(words: str) -> None:
    for parameter in ALL[words].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
            assert parameter.help[0].isupper() or parameter.help.startswith("postgresql://")


@pytest.mark.parametrize("words", ALL)
def test_an_example_is_a_command_that_exists(words: str) -> None:
    for line in EXAMPLES[words]:
        for name in re.findall(r"\bmailprobe ([a-z]+)", line):
            assert name in COMMANDS
        known = {opt for each in ALL.values() for param in each.params for opt in param.opts}
        for option in re.findall(r"(?<![\w-])--[a-z-]+", line):
            assert option in known, line


def test_the_help_groups_every_command_once() -> None:
    page = help_of("")
    groups = {
        title: re.findall(r"^  ([a-z]+) ", rows, re.MULTILINE)
        for title, rows in re.findall(r"^(Use|Service|Operate):\n((?:  .+\n)+)", page, re.MULTILINE)
    }
    assert list(groups) == ["Use", "Service", "Operate"]
    assert sorted(name for names in groups.values() for name in names) == sorted(COMMANDS)
    assert "verify" in groups["Use"]
    assert "account" in groups["Service"]
    assert "doctor" in groups["Operate"]


@pytest.mark.parametrize("words", ["", "clean", "key", "key create", "help"])
def test_the_command_help_prints_what_the_option_prints(words: str) -> None:
    done = CliRunner().invoke(main, ["help", *words.split()], prog_name="mailprobe")
    page = CliRunner().invoke(main, [*words.split(), "--help"], prog_name="mailprobe").output
    assert (done.exit_code, done.output) == (0, page)


def test_the_scenarios_of_the_lab_are_named() -> None:
    page = " ".join(help_of("lab").split())
    assert all(name in page for name in SCENARIO_NAMES)


def test_without_a_command_the_help_is_shown() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from mailprobe.api.start import main; main()"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Operate:" in done.stdout + done.stderr
    assert done.returncode in (0, 2)


def test_the_manual_page_is_that_of_the_commands() -> None:
    """`make man` writes it anew."""
    assert (ROOT / "dev/mailprobe.1").read_text("utf-8") == manual()


def test_the_manual_page_names_every_command_and_option() -> None:
    page = manual().replace(r"\-", "-")
    for words, command in ALL.items():
        assert f'"mailprobe {words}'.rstrip() in page
        for parameter in command.params:
            assert parameter.opts[-1] in page or parameter.human_readable_name in page


def test_the_manual_page_says_what_each_setting_takes_and_its_default() -> None:
    page = manual().replace(r"\-", "-")
    for name, text in (
        ("SMTP_PORT", "a port, 1 to 65535. Default: 25."),
        ("SMTP_HELO", "a host name, in ASCII and without spaces. Default: this host's full name."),
        ("LIST_ROWS_MAX", "a whole number, 1 to 20000000. Default: by tier."),
    ):
        assert f"\\fBMAILPROBE_{name}\\fR\n{text}\n" in page


@pytest.mark.skipif(which("groff") is None, reason="this machine has no groff")
def test_groff_finds_no_fault_in_the_manual_page() -> None:
    done = subprocess.run(
        ["groff", "-Kutf8", "-man", "-Tutf8", "-ww", "-z"],
        input=manual(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
