"""The commands, programs and samples of all pages run, and give what the pages show.

They run in a directory of their own, in a lab, with the paths that the pages use. Commands
that need a service have a real one, in the lab too. No network is needed.
"""

import re
import shutil
import sys
from pathlib import Path

import click
import pytest

from dev.lists.__main__ import main as lists_script
from mailprobe.api.cli import COMMANDS
from mailprobe.api.cli import main as mailprobe
from mailprobe.api.egress.file import read_egress_file
from mailprobe.api.quota.plans import KEYS, PLANS, read_plans
from mailprobe.api.settings import Settings
from mailprobe.bench.lab import Lab
from tests.docs.pages import ROOT, SPANS, Block, bare, blocks_in, table_of
from tests.docs.programs import bash, run

# target -> what runs it; a file is the test of what the target runs
MAKE = {
    "setup": ".ci/run",  # each target does it first
    "check": ".ci/run",
    "test": ".ci/run",
    "demo": "tests/api/cli/test_demo.py",
    "serve": "tests/api/cli/test_serve.py",
    "peers": ".ci/run",  # if it runs as root with Debian's packages
    "campaign": ".ci/run",  # likewise
    "container": ".ci/run",  # if it runs as root where podman can
    "first-use": ".ci/run",  # the same
    "helm": ".ci/run",  # if there is Go
    "clients": ".ci/run",  # if there is Node.js
    "browser": ".ci/run",  # if there is Chromium, or it runs as root with Debian's packages
    "shots": "by hand",  # makes pictures
    "bench": "by hand",  # a minute of a quiet machine
    "dist": ".github/workflows/release.yml",  # and by hand: it takes minutes
    "lock": "by hand",  # needs uv and a package index
}
GATE = (ROOT / ".ci/run", ROOT / ".ci/private")
SHELL = {"HOME", "PATH", "PWD"}
MAY_FAIL = "mailprobe doctor"  # it judges the machine: 1 is an answer


def commands_of(block: Block) -> list[str]:
    return [line for line in block.text.splitlines() if not line.startswith("make ")]


def is_made(block: Block) -> bool:
    """Is there nothing but `make` in it?"""
    return not commands_of(block)


@pytest.mark.parametrize("block", [b for b in blocks_in("sh") if not is_made(b)], ids=str)
def test_a_block_of_commands_runs(block: Block, place: Path, env: dict[str, str]) -> None:
    script = "\n".join(commands_of(block))
    (place / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n")
    code, output = bash(script, place, env | {"CURL_HOME": str(place)})
    assert code == 0 or (script == MAY_FAIL and code == 1), output
    assert "Traceback" not in output


@pytest.mark.parametrize("block", blocks_in("console"), ids=str)
def test_a_sample_is_what_is_printed(block: Block, place: Path, env: dict[str, str]) -> None:
    prompt, _, sample = block.text.partition("\n")
    _, output = bash(prompt.removeprefix("$ "), place, env)
    assert without_chance(output) == without_chance(sample)


# what differs from run to run -> what stands for it
CHANCE = (
    (r"\b[\d.,]+(?= ms)|(?<= )[\d,]+$", "#"),  # durations
    (r"\b([ps]k)_(live|test|mgmt)_[\w…]+", r"\1_\2_#"),
    (r"\b[0-9a-f]{8}-[-0-9a-f…]+", "#"),  # ids
    (r"\b\d{4}-[-\dT:.…]+Z", "#"),  # instants
    (r"(?<=http://127\.0\.0\.1:)\d+", "#"),
)


def without_chance(output: str) -> list[str]:
    """The lines that are not blank, without what differs from run to run."""
    lines = [re.sub(r"[ ─]+", " ", line).strip() for line in output.splitlines()]
    for pattern, instead in CHANCE:
        lines = [re.sub(pattern, instead, line) for line in lines]
    return [line for line in lines if line]


# language of a block -> its file, and the words that run it
LANGUAGES = {
    "python": ("program.py", (sys.executable,)),
    "js": ("program.cjs", ("node",)),
    "go": ("program.go", ("go", "run")),  # compiles the standard library at its first run
}
COMPILE_S = 180
SAME = "All three print:"  # before the block that shows what the programs of a page print


def is_whole(block: Block) -> bool:
    """A function in Go alone is no program; the receivers of docs/callbacks.md never end by themselves."""
    is_function = block.language == "go" and not block.text.startswith("package main")
    return not (is_function or "createServer" in block.text or "serve_forever" in block.text)


# The examples of docs/library.md need frameworks and those of docs/recipes.md other tools:
# tests/docs/test_library.py and tests/docs/test_recipes.py run them.
PROGRAMS = [
    block
    for name in LANGUAGES
    for block in blocks_in(name)
    if is_whole(block) and block.page.name not in ("library.md", "recipes.md")
]


@pytest.mark.parametrize("block", PROGRAMS, ids=str)
def test_a_program_runs(block: Block, place: Path, env: dict[str, str]) -> None:
    file, words = LANGUAGES[block.language]
    if not shutil.which(words[0]):
        pytest.skip(f"this machine has no {words[0]}")
    (place / file).write_text(block.text, "utf-8")
    code, output = run([*words, file], place, env, seconds=COMPILE_S)
    assert (code, "Traceback" in output) == (0, False), output
    shown = block.page.read_text("utf-8").partition(SAME)[2]
    if shown:
        sample = shown.partition("```text\n")[2].partition("```")[0]
        assert without_chance(output) == without_chance(sample)


def is_of_plans(block: Block) -> bool:
    return re.match(r"\[(free|builder|scale)\]", block.text) is not None


@pytest.mark.parametrize("block", blocks_in("toml"), ids=str)
def test_a_settings_file_is_accepted(block: Block, tmp_path: Path) -> None:
    if "[[egress]]" in block.text:
        (tmp_path / "egress.toml").write_text(block.text, "utf-8")
        assert read_egress_file(str(tmp_path / "egress.toml")).rows
        return
    name = "plans.toml" if is_of_plans(block) else "mailprobe.toml"
    (tmp_path / name).write_text(block.text, "utf-8")
    if is_of_plans(block):
        assert read_plans(tmp_path / name) != PLANS
        assert set(re.findall(r"^(\w+) =", block.text, re.MULTILINE)) == set(KEYS)
    else:
        Settings.read({}, tmp_path)


@pytest.mark.parametrize(
    "row", table_of("docs/settings.md", "code", "meaning", "for example"), ids=lambda row: row[0]
)
def test_a_command_ends_with_its_exit_code(row: list[str], place: Path, lab: Lab) -> None:
    code, output = bash(bare(row[2]), place, lab.env)
    assert code == int(row[0]), output


def test_every_exit_code_is_described() -> None:
    reported = table_of("docs/settings.md", "code", "meaning", "for example")
    assert [row[0] for row in reported] == ["0", "1", "2", "130"]


def targets_in(text: str) -> set[str]:
    return set(re.findall(r"^\s*(?:step )?make ([\w-]+)", text, re.MULTILINE))


def test_every_make_target_exists_and_is_run() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    gate = set().union(*(targets_in(path.read_text("utf-8")) for path in GATE))
    in_blocks = set().union(*(targets_in(block.text) for block in blocks_in("sh")))
    in_prose = {target for _, span in SPANS for target in targets_in(span)}
    for target in in_blocks | in_prose:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
    assert in_blocks == set(MAKE)
    for target, runner in MAKE.items():
        if runner == ".ci/run":
            assert target in gate | {"setup"}
        elif runner != "by hand":
            assert (ROOT / runner).is_file()


def test_a_page_says_what_each_variable_of_its_commands_holds() -> None:
    """A reader who copies a command knows what to set first; the tests' own setting would hide it."""
    unknown = {
        f"{block.page.name}: {name}"
        for block in blocks_in("sh") + blocks_in("console")
        for name in re.findall(r"\$([A-Z_]{2,})", block.text)
        if name not in SHELL
        and not re.search(rf"(`{name}[`=])|^(export )?{name}=", block.page.read_text("utf-8"), re.M)
    }
    assert unknown == set()


def options_of(command: click.Command) -> set[str]:
    names = [[*param.opts, *param.secondary_opts] for param in command.params]
    own = {option for each in names for option in each if option.startswith("--")}
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    return own.union(*map(options_of, inner))


def test_every_command_and_option_exists() -> None:
    known = {
        "--help",
        "--preserve-status",
        "--data-binary",
        "--format",
        "--schema",
        "--head",
        "--worker-class",
    }  # click's, timeout's, curl's, podman's, pg_dump's and hypercorn's
    known |= {option for param in mailprobe.params for option in param.opts}
    for name in COMMANDS:
        command = mailprobe.get_command(click.Context(mailprobe), name)
        assert command is not None
        known |= options_of(command)
    known |= options_of(lists_script)
    code = [block.text for block in blocks_in("sh") + blocks_in("console")]
    for text in [*code, *(span for _, span in SPANS)]:
        for name in re.findall(r"\bmailprobe ([a-z]+)\b", text):
            assert name in COMMANDS, text
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", text):
            assert option in known, text


def test_every_command_is_in_the_changelog() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert [name for name in COMMANDS if f"`mailprobe {name}" not in text] == []
