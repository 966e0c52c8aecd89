"""`mailprobe clean`: each row once, each address verified once, and interrupted runs resumed."""

import csv
import io
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO

import pytest
from msgspec.structs import replace

from mailprobe.api.cli.cleaning.outputs import Order, output_path
from mailprobe.api.cli.cleaning.run import clean_list
from mailprobe.api.cli.output.summary import Summary
from mailprobe.api.cli.source import in_request_order
from mailprobe.api.errors import CommandError
from tests.api.fake_source import FakeSource
from tests.warm_process import WarmProcess

ROOT = Path(__file__).parents[3]
LIST = """name,email
Ann,ann@shop.test
Nobody,nobody@shop.test
Ann again, ann@shop.test
,
Typo,bob@gmial.com
Wrong,not an address
"""


def clean(order: Order, source: FakeSource | None = None) -> tuple[Summary, bytes]:
    out = io.BytesIO()
    summary = clean_list(order, (source or FakeSource()).open, standard_output=out)
    return summary, out.getvalue()


def written(path: Path, text: str = LIST) -> Path:
    path.write_text(text)
    return path


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


# The output


def test_each_row_comes_out_once_in_order_with_its_result(tmp_path: Path) -> None:
    source = FakeSource()
    path = written(tmp_path / "list.csv")
    summary, _ = clean(Order(path, output_path(path)), source)
    rows = rows_of(tmp_path / "list.verified.csv")
    assert [row["name"] for row in rows] == ["Ann", "Nobody", "Ann again", "", "Typo", "Wrong"]
    assert [row["email"] for row in rows][2] == " ann@shop.test"
    assert [row["mailprobe_email"] for row in rows][2] == "ann@shop.test"
    assert [row["light"] for row in rows] == [
        "GREEN_LIGHT", "RED_LIGHT", "GREEN_LIGHT", "", "YELLOW_LIGHT", "RED_LIGHT",
    ]  # fmt: skip
    assert Counter(source.asked) == dict.fromkeys(
        ["ann@shop.test", "nobody@shop.test", "bob@gmial.com", "not an address"], 1
    )
    assert (summary.rows, summary.blank, summary.addresses, summary.verified) == (6, 1, 4, 4)
    assert summary.counts.statuses == {"deliverable": 3, "undeliverable": 1, "invalid": 1}
    assert names_in(tmp_path) == ["list.csv", "list.verified.csv"]


def test_an_output_of_an_earlier_run_is_replaced_only_by_force(tmp_path: Path) -> None:
    path = written(tmp_path / "list.csv")
    output = output_path(path)
    output.write_text("old")
    assert "--force" in refused(Order(path, output))
    assert "--force" in refused(Order(path, output, resume=True))
    assert output.read_text() == "old"
    clean(Order(path, output, force=True))
    assert len(rows_of(output)) == 6


def test_an_output_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    path = written(tmp_path / "list.csv")
    output = output_path(path)

    class Meddling(FakeSource):
        def report(self, line: str) -> None:
            output.write_text("another program's")

    with pytest.raises(CommandError, match="appeared meanwhile"):
        clean(Order(path, output), Meddling())
    assert output.read_text() == "another program's"
    output.unlink()
    source = FakeSource()
    clean(Order(path, output, resume=True), source)
    assert source.asked == []
    assert len(rows_of(output)) == 6


def test_without_an_output_file_the_rows_go_to_standard_output(tmp_path: Path) -> None:
    _, out = clean(Order(written(tmp_path / "list.csv"), None))
    assert out.decode().splitlines()[1].startswith("Ann,ann@shop.test,ann@shop.test,true,")
    assert names_in(tmp_path) == ["list.csv"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.csv", "a.verified.csv"),
        ("a.b.txt", "a.b.verified.txt"),
        ("a", "a.verified"),
        ("a.XLSM", "a.verified.xlsx"),
        ("a.json", "a.verified.ndjson"),
        ("a.vcf", "a.verified.csv"),
    ],
)
def test_the_outputs_name_is_made_from_the_inputs(name: str, expected: str) -> None:
    assert output_path(Path("x") / name) == Path("x") / expected


def test_domains_take_turns_and_keep_together() -> None:
    big = [f"{n}@big.test" for n in range(50)]
    addresses = [*big[:30], "a@one.test", *big[30:], "b@ONE.test", "c@two.test", "none"]
    order = in_request_order(addresses)
    assert sorted(order) == sorted(addresses)
    assert order[:20] == big[:20]
    assert order[20:24] == ["a@one.test", "b@ONE.test", "c@two.test", "none"]
    assert order[24:] == big[20:]


# Refused input


def refused(order: Order) -> str:
    source = FakeSource()
    with pytest.raises(CommandError) as fault:
        clean(order, source)
    assert fault.value.exit_code == 2
    assert source.asked == []
    assert "\n" not in fault.value.message
    return fault.value.message


def test_the_list_itself_is_never_the_output(tmp_path: Path) -> None:
    path = written(tmp_path / "list.csv")
    (tmp_path / "same.csv").symlink_to(path)
    assert "the list itself" in refused(Order(path, path))
    assert "the list itself" in refused(Order(path, tmp_path / "same.csv"))
    assert path.read_text() == LIST


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (".", "is a directory"),
        ("none/out.csv", "/none; create it, or name another output"),
        ("out.json", "takes the endings"),
        ("fifo", "not a regular file"),
    ],
)
def test_an_impossible_output_is_refused_before_verification(
    tmp_path: Path, output: str, words: str
) -> None:
    path = written(tmp_path / "list.csv")
    os.mkfifo(tmp_path / "fifo")
    assert words in refused(Order(path, tmp_path / output))
    assert names_in(tmp_path) == ["fifo", "list.csv"]


def test_an_impossible_report_is_refused_before_verification(tmp_path: Path) -> None:
    """It was refused when the list had been verified, and again by the command that continues."""
    path = written(tmp_path / "list.csv")
    for report in (tmp_path / "none" / "report.html", tmp_path):
        said = refused(Order(path, output_path(path), report=report))
        assert "--report" in said
        assert "with -o" not in said
    assert names_in(tmp_path) == ["list.csv"]


def test_a_run_that_ended_is_not_continued(tmp_path: Path) -> None:
    path = written(tmp_path / "list.csv")
    clean(Order(path, output_path(path)))
    said = refused(Order(path, output_path(path), resume=True))
    assert "there is no interrupted run to continue" in said


def test_a_list_without_an_address_is_reported(tmp_path: Path) -> None:
    path = written(tmp_path / "list.csv", "email,n\n,1\n")
    assert "no address" in refused(Order(path, output_path(path)))
    assert names_in(tmp_path) == ["list.csv"]


def test_a_list_too_large_for_a_workbook_is_reported(tmp_path: Path) -> None:
    path = written(tmp_path / "list.csv", f"email,n\nann@shop.test,{'x' * 40_000}\n")
    assert ".csv" in refused(Order(path, tmp_path / "out.xlsx"))


def test_an_error_at_the_end_of_a_list_is_refused_before_verification(tmp_path: Path) -> None:
    lines = ['{"email":"ann@shop.test"}'] * 5000 + ["{broken"]
    path = written(tmp_path / "list.ndjson", "\n".join(lines))
    assert "line 5001" in refused(Order(path, output_path(path)))
    assert names_in(tmp_path) == ["list.ndjson"]


# Interrupted runs


def test_a_source_that_fails_loses_no_answer(tmp_path: Path) -> None:
    path = written(tmp_path / "list.csv")
    order = Order(path, output_path(path))
    first = FakeSource(fail_after=2)
    with pytest.raises(CommandError, match="2 of 4 addresses are answered and kept") as fault:
        clean(order, first)
    assert fault.value.exit_code == 1
    assert names_in(tmp_path) == ["list.csv", "list.verified.csv.journal"]
    with pytest.raises(CommandError, match="--resume") as fault:
        clean(order)
    assert fault.value.exit_code == 2

    second = FakeSource()
    summary, _ = clean(Order(path, order.output, resume=True), second)
    assert len(first.asked) == len(second.asked) == summary.verified == 2
    assert not set(first.asked) & set(second.asked)
    assert len(rows_of(tmp_path / "list.verified.csv")) == 6
    assert names_in(tmp_path) == ["list.csv", "list.verified.csv"]


@pytest.mark.parametrize("asks_hosts", [False, True])
def test_a_run_that_asks_mail_hosts_asks_what_one_without_them_has_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asks_hosts: bool
) -> None:
    """If both runs ask mail hosts, `not_asked` stays: the owner of a host asked for it."""
    path = written(tmp_path / "list.csv", "email\nunasked@a.test\nnomx@b.test\nann@c.test\n")
    order = Order(path, output_path(path), asks_hosts=asks_hosts)
    with pytest.raises(CommandError, match="2 of 3 addresses are answered and kept"):
        clean(order, FakeSource(fail_after=2))
    for source in (
        FakeSource(fail_after=0),
        again := FakeSource(fail_after=1),
        last := FakeSource(),
    ):
        with suppress(CommandError):
            clean(replace(order, resume=True, asks_hosts=True), source)
    asked = ["unasked@a.test", "ann@c.test"][asks_hosts:]
    assert (again.asked, last.asked) == (asked[:1], asked[1:])
    said = "the earlier run asked no mail host; 1 of its answers are asked for again"
    assert capsys.readouterr().err.count(said) == (0 if asks_hosts else 2)


def test_results_lost_from_a_damaged_journal_are_verified_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "list.csv")
    order = Order(path, output_path(path), resume=True)
    with pytest.raises(CommandError):
        clean(order, FakeSource(fail_after=3))
    journal = tmp_path / "list.verified.csv.journal"
    journal.write_bytes(journal.read_bytes().replace(b"ann@shop", b"\xff\xfe\xfd@shop", 1))
    second = FakeSource()
    clean(order, second)
    assert sorted(second.asked) == ["ann@shop.test", "not an address"]
    assert "1 line is damaged" in capsys.readouterr().err
    assert len(rows_of(tmp_path / "list.verified.csv")) == 6


def test_a_source_that_fails_at_once_leaves_nothing_behind(tmp_path: Path) -> None:
    path = written(tmp_path / "list.csv")
    with pytest.raises(CommandError, match="the service is gone; nothing was answered"):
        clean(Order(path, output_path(path)), FakeSource(fail_after=0))
    assert names_in(tmp_path) == ["list.csv"]


def test_a_changed_list_is_not_gone_on_with(tmp_path: Path) -> None:
    path = written(tmp_path / "list.csv")
    with pytest.raises(CommandError):
        clean(Order(path, output_path(path)), FakeSource(fail_after=1))
    written(path, LIST + "New,new@shop.test\n")
    assert "another list" in refused(Order(path, output_path(path), resume=True))


def test_resume_with_nothing_to_resume_is_a_run_like_any_other(tmp_path: Path) -> None:
    path = written(tmp_path / "list.csv")
    clean(Order(path, output_path(path), resume=True))
    assert len(rows_of(tmp_path / "list.verified.csv")) == 6


def test_a_bug_is_not_swallowed_and_loses_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def bug(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("mailprobe.api.cli.cleaning.outputs._counted", bug)
    path = written(tmp_path / "list.csv")
    with pytest.raises(ZeroDivisionError):
        clean(Order(path, output_path(path)))
    assert "4 of 4 addresses are answered and kept" in capsys.readouterr().err
    assert names_in(tmp_path) == ["list.csv", "list.verified.csv.journal"]


# The program


class Child:
    """`mailprobe` in its own process, with the fake source as its engine."""

    def __init__(self, process: "subprocess.Popen[bytes]", reported: io.BufferedReader) -> None:
        self.process = process
        self._reported = reported
        self.asked: list[str] = []

    def until_ready(self) -> None:
        for line in self._reported:
            word = line.decode().rstrip("\n")
            if word == "ready":
                return
            self.asked.append(word)
        raise AssertionError("the child ended before it was ready")

    def end(self) -> tuple[int, str, str]:
        self.asked += [line.decode().rstrip("\n") for line in self._reported]
        out, err = self.process.communicate()
        return self.process.returncode, (out or b"").decode(), err.decode()


@contextmanager
def mailprobe(
    *words: str | Path,
    directory: Path,
    hang_after: int | None = None,
    stdin: bytes = b"",
    file_octets_max: int | None = None,
    stdin_file: IO[bytes] | int = subprocess.PIPE,
    stdout_file: IO[bytes] | int = subprocess.PIPE,
) -> Iterator[Child]:
    read, write = os.pipe()
    named = {"--hang-after": hang_after, "--file-octets-max": file_octets_max}
    knobs = [[name, str(number)] for name, number in named.items() if number is not None]
    with (
        os.fdopen(read, "rb") as reported,
        WarmProcess(
            ["tests.api.fake_source", *chain(*knobs), "--", *map(str, words)],
            cwd=directory,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "FAKE_SOURCE_FD": str(write),
                "MAILPROBE_SMTP_MAIL_FROM": "probe@shop.test",  # no notice
            },
            pass_fds=[write],
            stdin=stdin_file,
            stdout=stdout_file,
            stderr=subprocess.PIPE,
        ) as process,
    ):
        os.close(write)
        if process.stdin:
            with suppress(BrokenPipeError):  # a wrong usage ends it before it reads
                process.stdin.write(stdin)
                process.stdin.close()
            process.stdin = None
        try:
            yield Child(process, reported)
        finally:
            process.kill()


def test_the_command_says_what_it_did_on_standard_error_alone(tmp_path: Path) -> None:
    written(tmp_path / "list.csv")
    with mailprobe("clean", "list.csv", directory=tmp_path) as child:
        code, out, err = child.end()
    assert (code, out) == (0, "")
    for words in ("6 rows", "1 without an address", "4 different", "deliverable", "accepted",
                  "Confirm", "YELLOW_LIGHT", "list.verified.csv"):  # fmt: skip
        assert words in err


def test_standard_input_is_cleaned_to_standard_output(tmp_path: Path) -> None:
    stdin = b'{"email":"ann@shop.test"}\n{"email":"nobody@shop.test"}\n'
    with mailprobe("clean", "-", directory=tmp_path, stdin=stdin) as child:
        code, out, _ = child.end()
    assert code == 0
    assert [json.loads(line)["light"] for line in out.splitlines()] == ["GREEN_LIGHT", "RED_LIGHT"]
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path, number: signal.Signals) -> None:
    written(tmp_path / "my list.csv")
    with mailprobe("clean", "my list.csv", "--column", "email", directory=tmp_path,
                   hang_after=2) as first:  # fmt: skip
        first.until_ready()
        first.process.send_signal(number)
        code, out, err = first.end()
    assert (code, out) == (130, "")
    assert "Traceback" not in err
    assert "2 of 4 addresses" in err
    assert "mailprobe clean 'my list.csv' --column email --resume" in err
    assert names_in(tmp_path) == ["my list.csv", "my list.verified.csv.journal"]

    with mailprobe("clean", "my list.csv", directory=tmp_path) as again:
        code, _, err = again.end()
    assert code == 2
    assert err.count("\n") == 1
    assert "--resume" in err

    with mailprobe("clean", "my list.csv", "--resume", directory=tmp_path) as second:
        code, _, err = second.end()
    assert code == 0
    assert Counter(first.asked + second.asked).most_common(1)[0][1] == 1
    assert names_in(tmp_path) == ["my list.csv", "my list.verified.csv"]


def test_an_interruption_before_the_first_answer_leaves_nothing_behind(tmp_path: Path) -> None:
    written(tmp_path / "list.csv")
    with mailprobe("clean", "list.csv", directory=tmp_path, hang_after=0) as child:
        child.until_ready()
        child.process.send_signal(signal.SIGINT)
        code, _, err = child.end()
    assert code == 130
    assert err.strip() == (
        "mailprobe: interrupted; nothing was answered yet, and nothing is left behind"
    )
    assert names_in(tmp_path) == ["list.csv"]


def test_kill_9_asks_nothing_twice(tmp_path: Path) -> None:
    addresses = [f"a{n}@shop{n % 7}.test" for n in range(500)]
    written(tmp_path / "list.txt", "\n".join(addresses))
    asked: list[str] = []
    for stop in (100, 150, 50):
        with mailprobe("clean", "list.txt", "--resume", directory=tmp_path,
                       hang_after=stop) as child:  # fmt: skip
            child.until_ready()
            child.process.kill()
            child.end()
        asked += child.asked
        with (tmp_path / "list.verified.txt.journal").open("ab") as journal:
            journal.write(b'{"email":"a1@sh')  # as a kill in mid-line leaves it
    with mailprobe("clean", "list.txt", "--resume", directory=tmp_path) as child:
        assert child.end()[0] == 0
    asked += child.asked
    assert sorted(asked) == sorted(addresses)
    assert [row["email"] for row in rows_of(tmp_path / "list.verified.txt")] == addresses


def test_two_runs_at_once_are_kept_apart(tmp_path: Path) -> None:
    written(tmp_path / "list.csv")
    with mailprobe("clean", "list.csv", directory=tmp_path, hang_after=1) as first:
        first.until_ready()
        with mailprobe("clean", "list.csv", "--resume", directory=tmp_path) as second:
            code, _, err = second.end()
        assert code == 2
        assert "another run" in err
        assert second.asked == []


@pytest.mark.parametrize("name", ["list.csv", "list.txt", "list.xlsx"])
def test_a_full_disk_loses_no_answer_and_leaves_no_half_output(tmp_path: Path, name: str) -> None:
    """RLIMIT_FSIZE stands in for a full disk; the journal reaches it first."""
    addresses = [f"a{n}@shop.test" for n in range(200)]
    written(tmp_path / "list.csv", "email\n" + "\n".join(addresses))
    command = ("clean", "list.csv", "-o", f"out{Path(name).suffix}")
    with mailprobe(*command, directory=tmp_path, file_octets_max=20_000) as child:
        code, _, err = child.end()
    assert code == 1
    assert err.count("\n") == 1
    assert "File too large" in err
    assert "--resume" in err
    journal = tmp_path / f"out{Path(name).suffix}.journal"
    assert journal.read_bytes().endswith(b"\n")
    assert 10 < journal.read_bytes().count(b"\n") < 200
    asked = child.asked[: journal.read_bytes().count(b"\n") - 1]

    with mailprobe(*command, "--resume", directory=tmp_path) as child:
        code, _, _ = child.end()
    assert code == 0
    assert sorted(asked + child.asked) == sorted(addresses)
    assert names_in(tmp_path) == sorted(["list.csv", f"out{Path(name).suffix}"])


def test_a_disk_that_fills_while_the_output_is_written(tmp_path: Path) -> None:
    row = f"ann@shop.test,{'x' * 10_000}\n"
    written(tmp_path / "list.csv", "email,n\n" + 10 * row)
    with mailprobe("clean", "list.csv", directory=tmp_path, file_octets_max=50_000) as child:
        code, _, err = child.end()
    assert code == 1
    assert "list.verified.csv cannot be written" in err
    assert "1 of 1 addresses" in err
    assert err.count("\n") == 1
    assert names_in(tmp_path) == ["list.csv", "list.verified.csv.journal"]


@pytest.mark.parametrize(
    ("name", "octets"),
    [
        ("none.csv", None),
        ("", None),
        ("empty.csv", b""),
        ("binary.csv", bytes(range(256))),
        ("plain.csv", b"a,b\n1,2\n"),
        ("head.csv", b"email\n"),
        ("\x1b[31mred.csv", b""),
    ],
)
def test_bad_input_gets_one_line_and_leaves_nothing(
    tmp_path: Path, name: str, octets: bytes | None
) -> None:
    if octets is not None:
        (tmp_path / name).write_bytes(octets)
    before = names_in(tmp_path)
    with mailprobe("clean", name, directory=tmp_path) as child:
        code, out, err = child.end()
    assert (code, out) == (2, "")
    assert err.startswith("mailprobe: ")
    assert "mailprobe:  " not in err  # an empty name
    assert err.count("\n") == 1
    assert err.strip().isprintable()
    assert names_in(tmp_path) == before


def test_wrong_usage_and_wrong_settings_exit_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mailprobe("clean", directory=tmp_path) as child:
        assert child.end()[0] == 2
    with mailprobe("clean", "-", "--resume", directory=tmp_path, stdin=b"a@b.test\n") as child:
        code, _, err = child.end()
        assert code == 2
        assert "-o" in err
    monkeypatch.setenv("MAILPROBE_SMTP_PORT", "smtp")
    with mailprobe("clean", "-", directory=tmp_path, stdin=b"a@b.test\n") as child:
        code, _, err = child.end()
    assert code == 2
    assert err == "mailprobe: MAILPROBE_SMTP_PORT is 'smtp': it takes a port, 1 to 65535\n"


def test_a_reader_that_goes_away_is_no_tragedy(tmp_path: Path) -> None:
    lines = "".join(f"a{n}@shop.test\n" for n in range(5000))
    with mailprobe("clean", "-", directory=tmp_path, stdin=lines.encode()) as child:
        assert child.process.stdout
        child.process.stdout.close()
        child.process.stdout = None
        code, _, err = child.end()
    assert code == 1
    assert "Traceback" not in err
    assert "Exception ignored" not in err
