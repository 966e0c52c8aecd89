"""What the README and the docs say is true: commands run, names exist, tables are the code's.

The commands run in a directory of their own, before a lab, with the paths that the
pages use. Those that ask a service have a real one, in the lab too. No network is needed.
"""

import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import import_module
from itertools import pairwise, product
from pathlib import Path
from typing import Any, get_args

import click
import httpx
import msgspec
import pytest

from mailprobe.api.cli import COMMANDS
from mailprobe.api.cli import main as mailprobe
from mailprobe.api.cli.output.lights import LIGHTS, light_of
from mailprobe.api.jobs.rules import callback_headers
from mailprobe.api.quota.plans import KEYS, MICROS_PER_EUR, PLANS, read_plans
from mailprobe.api.rest.errors import TABLE as ERRORS
from mailprobe.api.rest.operations import OPERATIONS, Operation
from mailprobe.api.rest.schema import (
    BatchVerifyResponse,
    ManagementAccountResponse,
    ManagementUsageResponse,
    ManagementUsageSummaryResponse,
)
from mailprobe.api.settings import TABLE, Settings
from mailprobe.bench.lab import SCENARIO_NAMES, Lab, start_lab
from mailprobe.bench.suites.service import ServiceProcess, start_service
from mailprobe.engine.evidence import Evidence
from mailprobe.engine.smtp.replies.rules import Meaning, load_rules
from mailprobe.engine.verdict import FIELDS, LADDER, Outcome, Status, judge
from tests.test_layers import PURE

ROOT = Path(__file__).parents[1]
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    ROOT / "examples/README.md",
    *sorted((ROOT / "docs").glob("*.md")),
)
SERVED = {"api.md", "operating.md", "tools.md"}  # pages whose commands have a service before them
RUN_S = 20  # no command of a page takes so long, on the slowest machine
ROWS = 4  # of the example list: the next one stalls

# target -> who runs it; a file is the test of what the target runs
MAKE = {
    "setup": ".ci/run",  # each target does it first
    "check": ".ci/run",
    "test": ".ci/run",
    "demo": "tests/api/cli/test_demo.py",
    "serve": "tests/api/cli/test_serve.py",
    "peers": ".ci/run",  # where it is root with Debian's packages
    "bench": "by hand",  # a minute of a quiet machine
    "lock": "by hand",  # needs uv and a package index
}
GATE = (ROOT / ".ci/run", ROOT / ".ci/private")
MAY_FAIL = "mailprobe doctor"  # it judges the machine: 1 is an answer
OF_THE_MACHINE = ("curl", "sqlite3")  # programs that a page takes for granted, and we do not


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    begun: tuple[int, str] | None = None
    inside: list[str] = []
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        if not line.startswith("```"):
            inside.append(line)
        elif begun is None:
            begun, inside = (number, line[3:]), []
        else:
            yield Block(page, *begun, "\n".join(inside) + "\n")
            begun = None


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def blocks_in(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


def without_blocks(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def spans_of(page: Path) -> list[str]:
    """What stands in backticks in a page's prose."""
    return re.findall(r"`([^`\n]+)`", without_blocks(page))


SPANS = [(page, span) for page in PAGES for span in spans_of(page)]


def table_of(page: str, *header: str) -> list[list[str]]:
    """The cells of all tables of a page that have this header; the page must have one."""
    rows: list[list[str]] = []
    inside = False
    for line in (ROOT / page).read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if tuple(cells) == header:
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not set(line) <= set("|-"):
            rows.append(cells)
    assert rows, f"{page} has no table of {header}"
    return rows


def bare(cell: str) -> str:
    return cell.strip("`")


# -- commands --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with start_lab() as running:
        yield running


@pytest.fixture(scope="module")
def service(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with start_service(lab.env, tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A checkout as the pages see it: the program, the examples and a list of one's own."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "examples").mkdir()
    shutil.copy(ROOT / "examples/stream.py", tmp_path / "examples")
    lines = (ROOT / "examples/list.csv").read_text("utf-8").splitlines(keepends=True)
    for path in ("examples/list.csv", "list.csv"):
        (tmp_path / path).write_text("".join(lines[: ROWS + 1]), "utf-8")
    return tmp_path


@pytest.fixture
def env(request: pytest.FixtureRequest, block: Block, place: Path, lab: Lab) -> dict[str, str]:
    """What a block's commands find: the lab, and with it the service and its database."""
    for program in OF_THE_MACHINE:
        if re.search(rf"\b{program} ", block.text) and not shutil.which(program):
            pytest.skip(f"this machine has no {program}")
    if block.page.name not in SERVED and "$BASE_URL" not in block.text:
        return lab.env
    service: ServiceProcess = request.getfixturevalue("service")
    (place / "data").symlink_to(service.folder / "data")
    variables = {
        "BASE_URL": service.url,
        "TOOLS_URL": service.tools_url,
        "KEY": service.key,
        "PROVISIONING_KEY": service.account["provisioning_key"],
        "ACCOUNT_ID": service.account["account_id"],
    }
    if "$KEY_ID" in block.text:
        variables["KEY_ID"] = new_key_id(service)
    return lab.env | variables


def new_key_id(service: ServiceProcess) -> str:
    """Of a key that is the block's own, to be revoked."""
    made = httpx.post(
        f"{service.url}/v1/management/keys",
        headers={"Authorization": f"Bearer {service.account['provisioning_key']}"},
        trust_env=False,
    )
    key_id: str = made.json()["id"]
    return key_id


def run(words: list[str], place: Path, variables: Mapping[str, str]) -> tuple[int, str]:
    """Run it to its end; exit code, and all that it said."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAILPROBE_")}
    env |= {"PATH": f"{sys.prefix}/bin{os.pathsep}{env['PATH']}", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        words,
        cwd=place,
        env={**env, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=RUN_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, said


def bash(script: str, place: Path, variables: Mapping[str, str]) -> tuple[int, str]:
    """Run a script that ends at its first failure; what it left in the background ends with it."""
    ending = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"
    return run(["bash", "-euo", "pipefail", "-c", f"{ending}\n{script}"], place, variables)


def commands_of(block: Block) -> list[str]:
    return [line for line in block.text.splitlines() if not line.startswith("make ")]


def is_made(block: Block) -> bool:
    """Is there nothing but `make` in it?"""
    return not commands_of(block)


@pytest.mark.parametrize("block", [b for b in blocks_in("sh") if not is_made(b)], ids=str)
def test_a_block_of_commands_runs(block: Block, place: Path, env: dict[str, str]) -> None:
    script = "\n".join(commands_of(block))
    (place / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n")
    code, said = bash(script, place, env | {"CURL_HOME": str(place)})
    assert code == 0 or (script == MAY_FAIL and code == 1), said
    assert "Traceback" not in said


@pytest.mark.parametrize("block", blocks_in("console"), ids=str)
def test_a_sample_is_what_is_printed(block: Block, place: Path, env: dict[str, str]) -> None:
    prompt, _, sample = block.text.partition("\n")
    _, said = bash(prompt.removeprefix("$ "), place, env)
    assert without_chance(said) == without_chance(sample)


# what differs from run to run -> what stands for it
CHANCE = (
    (r"\b[\d.,]+(?= ms)|(?<= )[\d,]+$", "#"),  # durations
    (r"\bsk_(live|test|mgmt)_[\w…]+", r"sk_\1_#"),
    (r"\b[0-9a-f]{8}-[-0-9a-f…]+", "#"),  # ids
    (r"\b\d{4}-[-\dT:.…]+Z", "#"),  # instants
    (r"(?<=http://127\.0\.0\.1:)\d+", "#"),
)


def without_chance(said: str) -> list[str]:
    """The lines that are not blank, without what differs from run to run."""
    lines = [re.sub(r"[ ─]+", " ", line).strip() for line in said.splitlines()]
    for pattern, instead in CHANCE:
        lines = [re.sub(pattern, instead, line) for line in lines]
    return [line for line in lines if line]


@pytest.mark.parametrize("block", blocks_in("python"), ids=str)
def test_a_program_runs(block: Block, place: Path, env: dict[str, str]) -> None:
    code, said = run([sys.executable, "-c", block.text], place, env)
    assert (code, "Traceback" in said) == (0, False), said


def is_of_plans(block: Block) -> bool:
    return re.match(r"\[(free|builder|scale)\]", block.text) is not None


@pytest.mark.parametrize("block", blocks_in("toml"), ids=str)
def test_a_settings_file_is_taken(block: Block, tmp_path: Path) -> None:
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
    code, said = bash(bare(row[2]), place, lab.env)
    assert code == int(row[0]), said


def test_every_exit_code_is_told() -> None:
    reported = table_of("docs/settings.md", "code", "meaning", "for example")
    assert [row[0] for row in reported] == ["0", "1", "2", "130"]


def targets_in(text: str) -> set[str]:
    return set(re.findall(r"^\s*make ([\w-]+)", text, re.MULTILINE))


def test_what_is_made_is_a_target_that_somebody_runs() -> None:
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


def options_of(command: click.Command) -> set[str]:
    names = [[*param.opts, *param.secondary_opts] for param in command.params]
    own = {option for each in names for option in each if option.startswith("--")}
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    return own.union(*map(options_of, inner))


def test_every_command_and_option_exists() -> None:
    known = {"--help", "--preserve-status"}  # click's, and timeout's
    for name in COMMANDS:
        command = mailprobe.get_command(click.Context(mailprobe), name)
        assert command is not None
        known |= options_of(command)
    code = [block.text for block in blocks_in("sh") + blocks_in("console")]
    for text in [*code, *(span for _, span in SPANS)]:
        for name in re.findall(r"\bmailprobe ([a-z]+)\b", text):
            assert name in COMMANDS, text
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", text):
            assert option in known, text


def test_every_command_is_in_the_changelog() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert [name for name in COMMANDS if f"`mailprobe {name}" not in text] == []


# -- links, files, names ---------------------------------------------------------------------


def headings_of(page: Path) -> set[str]:
    """A page's headings as the ends of links, the way that hosts of repositories make them."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", without_blocks(page)):
        if link.startswith("https://"):
            continue
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), link
        assert target.exists(), link
        assert not heading or heading in headings_of(target), link


def test_files_and_tests_that_are_named_exist() -> None:
    made = {"examples/list.verified.csv"}
    for page, span in SPANS:
        path, _, test = span.partition("::")
        if not re.fullmatch(r"(engine|api|storage|bench|tests|docs|examples)/[\w./-]*", path):
            continue
        if path in made or (page.parent / path).exists():
            continue
        assert (ROOT / path).exists(), f"{page.name}: {span}"
        if test:
            assert f"def {test}(" in (ROOT / path).read_text("utf-8"), f"{page.name}: {span}"


def pictured(page: str) -> set[str]:
    """The paths in a page's picture of the folders."""
    [picture] = [block for block in blocks_of(ROOT / page) if block.text.startswith("engine/")]
    paths: set[str] = set()
    folders: list[str] = []
    for line in picture.text.splitlines():
        found = re.match(r"( *)([\w.]+/?)(?: {2,}|$)", line)
        assert found, line
        depth = len(found[1]) // 2
        folders[depth:] = [found[2]]
        paths.add("".join(folders))
    return paths


@pytest.mark.parametrize("page", ["README.md", "docs/engine.md"])
def test_what_is_pictured_exists(page: str) -> None:
    assert {path for path in pictured(page) if not (ROOT / path).exists()} == set()


def test_every_file_of_the_engine_is_pictured() -> None:
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "engine").rglob("*.py")}
    inner = {path for path in files if path.count("/") > 1 and path.endswith("__init__.py")}
    assert files - inner - pictured("docs/engine.md") == set()


def test_what_is_called_pure_is_kept_pure() -> None:
    text = (ROOT / "docs/engine.md").read_text("utf-8")
    sentence = text[text.index("These import no") :].partition("\n\n")[0]
    reported = re.findall(r"`(engine/[\w/]+)\.py`", sentence)
    assert sorted(reported) == sorted(
        name.removeprefix("mailprobe.").replace(".", "/") for name in PURE
    )


# -- tables ----------------------------------------------------------------------------------


def test_settings_that_are_named_exist() -> None:
    known = {row.variable for row in TABLE} | {"MAILPROBE_CONFIG", "MAILPROBE_"}
    for page in PAGES:
        named = set(re.findall(r"MAILPROBE_\w*", page.read_text("utf-8")))
        assert named <= known, page.name


@pytest.mark.parametrize("page", ["README.md", "docs/settings.md"])
def test_settings_have_the_defaults_that_are_told(page: str) -> None:
    rows = {bare(row[0]): row[1] for row in table_of(page, "name", "default", "meaning")}
    for setting in TABLE:
        if setting.variable in rows:
            reported, default = rows.pop(setting.variable), setting.default()
            if reported.startswith("`"):
                assert bare(reported) == as_set(default), setting.variable
        else:
            assert page == "README.md", f"{setting.variable} is not told"
    assert rows == {}


def as_set(default: object) -> str:
    """A default as one would write it into the environment."""
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return str(int(default) if isinstance(default, bool) else default)


def test_the_ladder_is_the_codes() -> None:
    header = ("outcome", "what happened", "status", "valid", "confidence", "failed_check")
    reported = {Outcome(bare(row[0])): row[2:] for row in table_of("docs/verdicts.md", *header)}
    words = {True: "true", False: "false", None: "null"}
    assert reported == {
        outcome: [rung.status, words[rung.valid], str(rung.confidence), str(rung.failed_check or "null")]
        for outcome, rung in LADDER.items()
    }  # fmt: skip


def test_the_readme_has_every_field_and_every_confidence() -> None:
    fields = table_of("README.md", "field", "meaning")
    assert tuple(bare(row[0]) for row in fields) == FIELDS
    rungs = table_of("README.md", "confidence", "situation")
    assert {float(row[0]) for row in rungs} == {rung.confidence for rung in LADDER.values()}


def test_replies_are_read_in_the_order_that_is_told() -> None:
    header = ("order", "what the words speak of", "a rule of that kind")
    reported = [bare(row[2]) for row in table_of("docs/verdicts.md", *header)]
    ids = [rule.reading.rule for rule in load_rules().rules]
    assert all(ids.index(one) < ids.index(other) for one, other in pairwise(reported))


def test_every_meaning_is_told() -> None:
    rows = table_of("docs/verdicts.md", "meaning", "of a 5xx to RCPT")
    reported = [name for row in rows for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(reported) == sorted(meaning.value for meaning in Meaning)


def test_limits_are_the_codes() -> None:
    for name, value, _ in table_of("docs/engine.md", "constant", "value", "why"):
        module, _, constant = bare(name).rpartition(".")
        assert getattr(import_module(module), constant) == float(value), name


def test_every_list_is_told() -> None:
    reported = {bare(row[0]) for row in table_of("docs/lists.md", "file", "kept", "says")}
    files = {path.name for path in (ROOT / "engine/data").iterdir() if path.name[0] != "."}
    assert reported == files - {"SOURCES.md"}


def test_the_lab_is_as_told(lab: Lab) -> None:
    assert [bare(row[0]) for row in table_of("docs/lab.md", "name", "plays")] == [*SCENARIO_NAMES]
    env = next(row[1] for row in table_of("docs/lab.md", "key", "holds") if row[0] == "`env`")
    assert re.findall(r"`(\w+)`", env) == [*lab.env]
    assert {Outcome(name) for name in lab.addresses} <= {*Outcome}


# -- the API ---------------------------------------------------------------------------------


def test_the_routes_are_the_operations() -> None:
    rows = table_of("docs/api.md", "method", "path", "key", "does")
    reported = [(method, bare(path), key) for method, path, key, _ in rows]
    assert reported == [(o.method, o.path, o.key or "none") for o in OPERATIONS]


CALLED = [one for one in OPERATIONS if not one.raw]  # what is left is called by Stripe


@pytest.mark.parametrize("operation", CALLED, ids=lambda operation: operation.name)
def test_each_route_has_a_command_that_asks_it(operation: Operation) -> None:
    path = operation.path.replace("{id}", "$KEY_ID")
    asks = re.compile(rf"\bcurl\b.*\$BASE_URL{re.escape(path)}(?![\w/])")
    assert any(
        asks.search(block.text)
        for block in [*blocks_in("sh"), *blocks_in("console")]
        if block.page.name == "api.md"
    )


def test_the_fields_of_bodies_are_the_codes() -> None:
    fields = [bare(row[0]) for row in table_of("docs/api.md", "field", "type", "meaning")]
    assert fields == [
        "email",
        "webhook",
        "webhook_secret",
        *FIELDS,
        *BatchVerifyResponse.__struct_fields__,
    ]
    evidence = table_of("docs/api.md", "field of `evidence`", "holds")
    assert [bare(row[0]) for row in evidence] == [*Evidence.__struct_fields__]
    reported: dict[str, set[str]] = {}
    for body, names, _ in table_of("docs/api.md", "of", "field", "meaning"):
        reported.setdefault(body, set()).update(re.findall(r"`(\w+)`", names))
    assert reported == {
        "account": set(ManagementAccountResponse.__struct_fields__),
        "usage": set(ManagementUsageResponse.__struct_fields__),
        "summary": set(ManagementUsageSummaryResponse.__struct_fields__),
    }


def test_every_error_is_told_with_its_status() -> None:
    rows = table_of("docs/api.md", "code", "status", "when", "what to do")
    assert len({bare(row[0]) for row in rows}) == len(rows)
    assert {(bare(row[0]), int(row[1])) for row in rows} == {
        (error.code, error.status) for error in ERRORS.values()
    }


def test_what_error_bodies_link_to_is_a_heading_of_the_page() -> None:
    anchors = {error.anchor for error in ERRORS.values()} - {None}
    anchors |= {operation.section for operation in OPERATIONS}
    assert anchors <= headings_of(ROOT / "docs/api.md")


def test_the_tiers_are_the_codes() -> None:
    header = ("tier", "a minute, each key", "a month, the account", "standard keys")
    rows = table_of("docs/api.md", *header, "beyond, each", "usage rows kept")
    assert {bare(tier): [*map(number_in, cells)] for tier, *cells in rows} == {
        tier: [
            plan.rate_limit_per_min,
            plan.monthly_calls,
            plan.max_keys,
            plan.price_micros_per_call / MICROS_PER_EUR,
            plan.retention_days,
        ]
        for tier, plan in PLANS.items()
    }


def number_in(cell: str) -> float:
    """The number that a cell begins with; 0 for none."""
    found = re.match(r"[\d.]+", cell)
    return float(found[0]) if found else 0


def test_the_lights_are_the_codes() -> None:
    rows = table_of("docs/api.md", "rule", "where", "light", "do")
    assert [row[2] for row in rows] == [light for _, light in LIGHTS]
    assert [*dict.fromkeys(row[0] for row in rows)] == [*"12345678"]


def test_the_example_gives_the_same_lights() -> None:
    """Each outcome, as it comes and with any one field otherwise."""
    light_in_example = runpy.run_path(str(ROOT / "examples/stream.py"))["light_of"]
    others = {
        "suggestion": ["gmail.com"],
        "disposable": [True],
        "smtp_blocked": [True],
        "catch_all": [True],
        "valid": [True, False],
        "status": get_args(Status),
        "confidence": [0.0, 0.49, 0.5, 0.74, 0.75, 0.89, 0.9, 1.0],
    }
    for outcome, mx_found in product(Outcome, (False, True)):
        known = judge("ann@example.org", outcome, mx_found=mx_found)
        changed = [{name: value} for name, values in others.items() for value in values]
        for change in [{}, *changed]:
            verdict = msgspec.structs.replace(known, **change)
            assert light_in_example(msgspec.to_builtins(verdict)) == light_of(verdict), verdict


def test_a_receivers_check_believes_us_and_nobody_else() -> None:
    """The program of the page, before what a callback is signed with."""
    (block,) = [one for one in blocks_in("python") if one.page.name == "callbacks.md"]
    page: dict[str, Any] = {}
    exec(block.text, page)
    body = '{"email":"ä@x.test","job_id":"1"}'.encode()
    for secret in ("a secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"):
        headers = callback_headers("1", body, secret, datetime.now(UTC))
        assert page["is_genuine"](headers, body, secret)
        assert not page["is_genuine"](headers, body + b" ", secret)
        assert not page["is_genuine"](headers, body, "another secret")
        late = callback_headers("1", body, secret, datetime.now(UTC) - timedelta(minutes=6))
        assert not page["is_genuine"](late, body, secret)
