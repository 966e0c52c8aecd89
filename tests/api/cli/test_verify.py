"""`mailprobe verify`: a table for a person, lines for a script, and no terminal escapes."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio
from click.testing import CliRunner
from rich.console import Console

from mailprobe.api.cli import main
from mailprobe.api.cli.output.report import (
    explanation,
    print_verdicts,
    summary_table,
    verdict_table,
)
from mailprobe.api.cli.source import OwnEngine
from mailprobe.api.cli.verify import _texts, print_table
from mailprobe.api.results.counts import ProgressRate, ResultCounts, duration
from mailprobe.api.terminal import plain
from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.host_profiles import new_host
from mailprobe.bench.world.zone import ZoneMode
from mailprobe.engine.evidence import ConnectionAttempt, ConversationLine, Evidence
from mailprobe.engine.verdict import FIELDS
from tests.api.cli.test_clean import mailprobe
from tests.api.fake_source import EVIDENCE, result_of
from tests.engine.engine_runs import open_test_engine

HOSTILE = "\x1b]0;owned\x07\u202e[bold red]\N{ZERO WIDTH SPACE}"


def drawn(table: object, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width, markup=False).print(table)
    return out.getvalue()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("Ann Lee <ann@shop.test>", "ann@shop.test"),
        ('"Lee, Ann" < ann@shop.test >,', "ann@shop.test"),
        ("<ann@shop.test>", "ann@shop.test"),
        ("Ann <ann>", "Ann <ann>"),
        ("ann@shop.test", "ann@shop.test"),
        (" ann@shop.test", "ann@shop.test"),
        ("mailto:ann@shop.test?subject=Hi", "ann@shop.test"),
        ("ann (at) shop.test", "ann (at) shop.test"),
    ],
)
def test_typed_arguments_are_unwrapped(text: str, address: str) -> None:
    assert list(_texts([text])) == [address]


def test_json_is_one_result_a_line_and_nothing_else(tmp_path: Path) -> None:
    with mailprobe("verify", "--json", "ann@shop.test", "nobody@shop.test", "x",
                   directory=tmp_path) as child:  # fmt: skip
        code, out, err = child.end()
    assert (code, err) == (0, "")
    results = [json.loads(line) for line in out.splitlines()]
    assert [list(result) for result in results] == [list(FIELDS)] * 3
    assert [result["status"] for result in results] == ["deliverable", "undeliverable", "invalid"]


def test_json_explained_has_the_evidence_as_fifteenth_field(tmp_path: Path) -> None:
    with mailprobe("verify", "--json", "--explain", "ann@shop.test", directory=tmp_path) as child:
        code, out, _ = child.end()
    assert code == 0
    result = json.loads(out)
    assert list(result) == [*FIELDS, "evidence"]
    assert result["evidence"] == msgspec.to_builtins(EVIDENCE)


def test_each_line_is_there_before_the_next_is_known(tmp_path: Path) -> None:
    with mailprobe("verify", "--json", "a@shop.test", "b@shop.test", directory=tmp_path,
                   hang_after=1) as child:  # fmt: skip
        assert child.process.stdout
        assert json.loads(child.process.stdout.readline())["email"] == "a@shop.test"
        child.until_ready()
        child.process.send_signal(signal.SIGINT)
        code, _, err = child.end()
    assert code == 130
    assert err.strip() == "mailprobe: interrupted"


def test_verify_prints_a_table_in_the_order_of_its_arguments(tmp_path: Path) -> None:
    with mailprobe("verify", "nobody@shop.test", "ann@shop.test", directory=tmp_path) as child:
        code, out, err = child.end()
    assert (code, err) == (0, "")
    assert out.index("nobody@shop.test") < out.index("ann@shop.test")
    assert "\x1b" not in out


def test_a_dash_stands_for_the_lines_of_standard_input(tmp_path: Path) -> None:
    stdin = b"a@shop.test\r\n\n b@shop.test\n\xff@shop.test\n"
    with mailprobe("verify", "--json", "-", directory=tmp_path, stdin=stdin) as child:
        code, out, _ = child.end()
    assert code == 0
    asked = [json.loads(line)["email"] for line in out.splitlines()]
    assert asked == ["a@shop.test", "b@shop.test", "\\xff@shop.test"]


@pytest.mark.parametrize("stdin", [b"", b"\n \r\n"])
def test_an_empty_standard_input_is_an_error_and_no_table(tmp_path: Path, stdin: bytes) -> None:
    with mailprobe("verify", "-", directory=tmp_path, stdin=stdin) as child:
        code, out, err = child.end()
    assert (code, out) == (2, "")
    assert err == "mailprobe: standard input is empty; it has one address a line\n"


def test_a_reader_that_has_enough_is_no_tragedy(tmp_path: Path) -> None:
    stdin = b"".join(b"a%d@shop.test\n" % n for n in range(2000))
    with mailprobe("verify", "--json", "-", directory=tmp_path, stdin=stdin) as child:
        assert child.process.stdout
        child.process.stdout.readline()
        child.process.stdout.close()
        child.process.stdout = None
        code, _, err = child.end()
    assert code == 1
    assert err == ""


@pytest.mark.parametrize("words", [[], ["--nope", "a@b.test"]])
def test_wrong_usage_exits_2(tmp_path: Path, words: list[str]) -> None:
    with mailprobe("verify", *words, directory=tmp_path) as child:
        code, out, err = child.end()
    assert (code, out) == (2, "")
    assert err.startswith("mailprobe: ")
    assert err.endswith(" verify --help)\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünïcode", "plain ünïcode"),
        ("a\r\n\tb", r"a\r\n\tb"),
        ("\x1b[31m\x07\x9b", r"\x1b[31m\x07\x9b"),
        ("\u202e\u2028", r"\u202e\u2028"),
        ("\U000e0041", r"\U000e0041"),
        ("\udcff", r"\udcff"),
    ],
)
def test_unprintable_characters_are_escaped(text: str, shown: str) -> None:
    assert plain(text) == shown
    assert shown.isprintable()


def test_nothing_that_others_say_reaches_the_terminal_raw() -> None:
    verdict = msgspec.structs.replace(
        result_of("ann@shop.test"), email=HOSTILE, mx_host=HOSTILE, suggestion=HOSTILE
    )
    evidence = Evidence(
        [ConnectionAttempt(HOSTILE, HOSTILE, HOSTILE)],
        [ConversationLine(1, "server", HOSTILE)],
        HOSTILE,
        cached=[HOSTILE],
    )
    shown = drawn(verdict_table([verdict], 200), 200)
    shown += "".join(drawn(line, 200) for line in explanation(verdict, evidence))
    assert shown.count("[bold red]") >= 9
    assert not {"\x1b", "\x07", "\u202e", "\N{ZERO WIDTH SPACE}"} & set(shown)


@pytest.mark.parametrize("columns", [40, 80, 110, 200])
@pytest.mark.parametrize("length", [5, 25, 60, 200])
def test_an_address_is_never_broken_and_nothing_is_lost(columns: int, length: int) -> None:
    address = f"{'x' * length}@{'domain' * 2}.test"
    stream = io.StringIO()
    console = Console(file=stream, width=columns, highlight=False)
    print_verdicts(console, [result_of(address), result_of("b@gmial.com")])
    lines = stream.getvalue().splitlines()
    assert sum(address in line for line in lines) == 1
    assert all(len(line) <= columns for line in lines if address not in line)
    shown = " ".join(" ".join(lines).split())
    for words in ("deliverable", "mx.shop.test", "did you mean", "12"):
        assert words in shown or words in shown.replace(" ", "")


@pytest.mark.parametrize(
    ("profiles", "is_hint"),
    [
        (["unanswered"], True),
        (["refused", "unanswered"], True),
        (["silent"], True),
        (["silent at rcpt"], False),
        (["silent at ehlo"], False),
        (["closing"], False),
        (["unanswered", "silent at rcpt"], False),
        (["unanswered", "blocked at banner"], False),
        (["unanswered", "friendly"], False),
    ],
)
def test_no_mail_host_answered_is_said_only_if_none_did(
    profiles: list[str], is_hint: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    @asynccontextmanager
    async def open_source() -> AsyncIterator[OwnEngine]:
        async with open_fake_network() as network:
            for place, profile in enumerate(profiles):
                network.add(f"d{place}.test", new_host(profile))
            async with open_test_engine(network, read_s=0.3) as engine:
                yield OwnEngine(engine)

    texts = [f"known@d{place}.test" for place in range(len(profiles))]
    print_table(texts, open_source, explain=False)
    said = capsys.readouterr()
    assert ("no mail host answered" in said.err) == is_hint
    assert "EHLO" not in said.out  # the evidence is for --explain


async def test_typed_addresses_keep_the_deadlines_of_a_request(autojump_clock) -> None:
    """Those of a list wait their turn at a mail host and at a resolver."""
    texts = [f"ann{number}@hung{number % 3}.test" for number in range(30)]
    async with open_fake_network() as network:
        for number in range(3):
            network.zone.mode(f"hung{number}.test", ZoneMode.HANG)
        async with open_test_engine(network) as engine:
            began = trio.current_time()
            source = OwnEngine(engine, is_request=True)
            async with source.open_answers(texts) as answers:
                found = [answer.cause.reason async for answer in answers]
            assert trio.current_time() - began <= 1.6
    assert found == ["resolver"] * len(texts)


def test_a_dead_resolver_is_said_with_the_command_that_looks_into_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as silent:  # takes connections and says nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"https://127.0.0.1:{silent.getsockname()[1]}/dns-query"
        monkeypatch.setenv("MAILPROBE_DOH_URLS", url)
        done = CliRunner().invoke(main, ["verify", "ann@example.org"])
    assert "no name could be looked up; run mailprobe doctor to see why" in done.stderr


def test_an_explanation_shows_who_said_what_and_when() -> None:
    shown = "".join(drawn(line) for line in explanation(result_of("ann@shop.test"), EVIDENCE))
    assert "mx.shop.test (192.0.2.1): answered" in shown
    assert r"1.0 ms < 220 mx.shop.test \x1b[31mESMTP [bold]" in shown
    assert "2.5 ms > EHLO here.test" in shown
    assert "no-such-mailbox.enhanced" in shown
    assert "from cache  mx" in shown


def test_a_summary_counts_by_status_reason_and_light() -> None:
    counts = ResultCounts()
    for address in ("a@x.test", "b@x.test", "nobody@x.test", "throwaway@x.test"):
        counts.count(result_of(address))
    shown = drawn(summary_table(counts))
    for words in ("deliverable", "50.0 %", "no_mailbox", "throwaway domain", "Drop", "RED_LIGHT"):
        assert words in shown


def test_the_pace_is_that_of_the_last_seconds() -> None:
    pace = ProgressRate()
    pace.mark(0.0, 100)
    assert (pace.per_s, pace.left_s(200)) == (0.0, None)
    pace.mark(10.0, 150)
    assert (pace.per_s, pace.left_s(200)) == (5.0, 10.0)
    pace.mark(40.0, 150)
    pace.mark(41.0, 160)
    assert pace.per_s == pytest.approx(10 / 31)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "0 s"), (59.4, "59 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")],
)
def test_a_duration_is_said_as_people_do(seconds: float, words: str) -> None:
    assert duration(seconds) == words


AT_THE_FIRST_PACKET = """
import os, sys
def on_event(name, given):
    if name == "socket.connect":
        print(*sys.modules, flush=True)
        os._exit(0)
import mailprobe.api.cli.verify
mailprobe.api.cli.verify.SOON_S = 3600  # on a busy machine the time may come before the packet
sys.addaudithook(on_event)
from mailprobe.api.cli import main
main()
"""


@pytest.mark.parametrize("words", [["ann@example.org"], ["--json", "ann@example.org"]])
def test_the_first_question_leaves_before_what_it_does_not_need(words: list[str]) -> None:
    """Every imported module delays the answer at the terminal, so new imports must be noticed."""
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_FIRST_PACKET, "verify", *words],
        env={**os.environ, "MAILPROBE_DOH_URLS": "https://127.0.0.1:9/dns-query"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    imported = set(done.stdout.split())
    assert {"trio", "mailprobe.engine.stream.scheduler", "ssl"} <= imported
    needless = {
        "quart",
        "hypercorn",
        "cryptography",
        "stripe",
        "structlog",
        "sqlite3",
        "mailprobe.storage",
    }
    needless |= {
        "mailprobe.api.cli.output.report",
        "mailprobe.api.cli.cleaning",
        "mailprobe.api.listfile",
    }
    assert not needless & imported


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--server", "http://127.0.0.1:1"), "the service needs an API key: set MAILPROBE_KEY"),
        (("--key", "sk_live_x"), "--key needs the service's address too: give --server"),
        (("--server", "ftp://x", "--key", "k"), "--server takes the address of a service"),
    ],
)
def test_a_service_is_named_whole(arguments: tuple[str, ...], words: str) -> None:
    done = CliRunner().invoke(main, ["verify", "ann@shop.test", *arguments])
    assert done.exit_code == 2
    assert words in done.stderr


def test_a_file_in_the_place_of_an_address_is_named(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_text("ann@shop.test\n")
    result = CliRunner().invoke(main, ["verify", str(path)], prog_name="mailprobe")
    assert f"to verify the addresses in it: mailprobe clean {path}" in result.stderr
    assert "not an address" in result.stdout
