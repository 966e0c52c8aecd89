"""The command line with standard streams that are closed, full or of another encoding."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.api.cli.test_clean import LIST, ROOT, names_in, written
from tests.seeds import stride

FAKE = [sys.executable, "-m", "tests.api.fake_source", "--"]
STARTED = [
    sys.executable,
    "-c",
    "import os; from mailprobe.api.start import main; os.write(1, b'.'); main()",
]
ENV = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "MAILPROBE_DOH_URLS": "http://127.0.0.1:1/dns-query",
    "MAILPROBE_ALLOW_PRIVATE": "1",
}


def run(
    *words: str,
    directory: Path,
    command: list[str] = FAKE,
    before: Callable[[], None] | None = None,
    stdin: bytes | None = None,
    **env: str,
) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [*command, *words],
        cwd=directory,
        env={**ENV, **env},
        input=stdin,
        capture_output=True,
        preexec_fn=before,
        timeout=300,  # of all forks together, on a busy machine
    )


def one_line(err: bytes) -> str:
    assert b"Traceback" not in err, err.decode()
    assert b"Exception ignored" not in err, err.decode()
    assert err.count(b"\n") == 1, err.decode()
    return err.decode()


# Standard streams are made at an interpreter's start, which costs more than these commands: each
# is a fork of one interpreter. argv: the commands, and the streams that are redirected.
EACH_FORKED = """
import json, os, sys
from tests.api.fake_source import main

for number, words in enumerate(json.loads(sys.argv[1])):
    if not os.fork():
        for descriptor in map(int, sys.argv[2]):
            file = os.open(f"../{number}.{descriptor}", os.O_WRONLY | os.O_CREAT)
            os.dup2(file, descriptor)
            os.close(file)  # also if it was the number of a closed stream
        sys.argv[1:] = []
        main(["--", *words])
        sys.exit()
    code = os.waitstatus_to_exitcode(os.wait()[1])
    with open(f"../{number}.code", "w") as file:
        file.write(str(code))
"""


def run_each(
    commands: list[list[str]],
    *,
    directory: Path,
    redirected: str,
    before: Callable[[], None] | None = None,
    encoding: str = "utf-8",
) -> list["subprocess.CompletedProcess[bytes]"]:
    """Run them in forks of one interpreter; their output is in the parent directory."""
    command = [sys.executable, "-c", EACH_FORKED]
    words = (json.dumps(commands), redirected)
    done = run(
        *words,
        directory=directory,
        command=command,
        before=before,
        stdin=b"",
        PYTHONIOENCODING=encoding,
        COLUMNS="200",
    )
    assert done.returncode == 0, done.stderr
    ended = []
    for number, each in enumerate(commands):
        code = int((directory.parent / f"{number}.code").read_text())
        out, err = (
            (directory.parent / f"{number}.{stream}").read_bytes() if stream in redirected else b""
            for stream in "12"
        )
        ended.append(subprocess.CompletedProcess(each, code, out, err))
    return ended


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@pytest.mark.parametrize("encoding", ["ascii", "ascii:surrogateescape", "latin-1", "utf-16"])
def test_output_works_in_any_encoding(place: Path, encoding: str) -> None:
    written(place / "list.csv", "email\njürgen@müller.test\n")
    commands = [
        ["verify", "jürgen@müller.test", "名前@例え.test", "x"],
        ["verify", "--explain", "jürgen@müller.test"],
        ["verify", "--json", "jürgen@müller.test"],
        ["clean", "list.csv"],
        ["--help"],
        ["clean", "--help"],
    ]
    for done in run_each(commands, directory=place, redirected="12", encoding=encoding):
        assert done.returncode == 0, done
        assert done.stdout + done.stderr
        assert b"Traceback" not in done.stderr
        if encoding != "utf-16":
            name = "utf-8" if "--json" in done.args else encoding.partition(":")[0]
            (done.stdout + done.stderr).decode(name)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_doctor_works_in_any_encoding(tmp_path: Path, encoding: str) -> None:
    command = [sys.executable, "-c", "from mailprobe.api.cli import main; main()"]
    done = run("doctor", directory=tmp_path, command=command, PYTHONIOENCODING=encoding)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    done.stdout.decode(encoding)


def full(descriptor: int, flags: int = os.O_WRONLY) -> Callable[[], None]:
    def fill() -> None:
        os.dup2(os.open("/dev/full", flags), descriptor)

    return fill


def closed(*descriptors: int) -> Callable[[], None]:
    def close() -> None:
        for each in descriptors:
            os.close(each)

    return close


@pytest.mark.parametrize("before", [full(1), closed(1)], ids=["full", "closed"])
def test_a_standard_output_that_cannot_be_written_is_reported(
    place: Path, before: Callable[[], None]
) -> None:
    written(place / "list.csv")
    written(place / "large.csv", "email\n" + "".join(f"a{n}@shop.test\n" for n in range(2000)))
    commands = [
        ["clean", "list.csv", "-o", "-"],
        ["clean", "large.csv", "-o", "-"],
        ["verify", "a@shop.test"],
        ["verify", "--json", "a@shop.test"],
        ["--help"],
        ["--version"],
    ]
    for done in run_each(commands, directory=place, redirected="2", before=before):
        assert done.returncode == 1, done
        assert "standard output cannot be written" in one_line(done.stderr)
    assert names_in(place) == ["large.csv", "list.csv"]
    assert (place / "list.csv").read_text() == LIST


@pytest.mark.parametrize("before", [full(2), closed(2), closed(0, 1, 2)])
def test_a_list_is_cleaned_though_nobody_hears_of_it(
    tmp_path: Path, before: Callable[[], None]
) -> None:
    """No opened file may get the number of a standard stream: messages would be written into it."""
    written(tmp_path / "list.csv")
    done = run("clean", "list.csv", directory=tmp_path, before=before)
    assert done.returncode == 0
    output = (tmp_path / "list.verified.csv").read_text()
    assert len(output.splitlines()) == 7
    assert "mailprobe: " not in output
    assert names_in(tmp_path) == ["list.csv", "list.verified.csv"]


@pytest.mark.parametrize("words", [["clean", "-", "-o", "out.csv"], ["verify", "-"]])
def test_a_standard_input_that_cannot_be_read_is_reported(tmp_path: Path, words: list[str]) -> None:
    done = run(*words, directory=tmp_path, before=closed(0))
    assert done.returncode == 2
    assert "standard input cannot be read" in one_line(done.stderr)
    assert names_in(tmp_path) == []


def test_a_missing_folder_for_temporary_files_is_reported(tmp_path: Path) -> None:
    """TMPDIR is one of several places, so each of them must be gone."""
    program = (
        "import tempfile, sys; tempfile._get_default_tempdir = tempfile._candidate_tempdir_list = None;"
        "tempfile.tempdir = '/nonesuch'; sys.argv[0] = 'mailprobe';"
        "from tests.api.fake_source import main; main(['--', *sys.argv[1:]])"
    )
    command = [sys.executable, "-c", program]
    done = run("clean", "-", directory=tmp_path, command=command, stdin=b"a@shop.test\n")
    assert done.returncode == 2
    assert "TMPDIR" in one_line(done.stderr)
    written(tmp_path / "list.csv")
    done = run("clean", "list.csv", "-o", "out.xlsx", directory=tmp_path, command=command)
    assert done.returncode == 1
    assert "TMPDIR" in one_line(done.stderr)


@pytest.mark.parametrize("words", [["verify", "a@shop.test"], ["clean", "list.csv"]])
def test_ctrl_c_works_in_every_moment_of_the_start(tmp_path: Path, words: list[str]) -> None:
    written(tmp_path / "list.csv", "email\nann@shop.test\n")
    for number in (signal.SIGINT, signal.SIGTERM):
        for step in range(0, 6, min(3, stride(1))):
            with subprocess.Popen(
                [*STARTED, *words], cwd=tmp_path, env=ENV, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            ) as process:  # fmt: skip
                assert process.stdout
                assert process.stdout.read(1) == b"."
                time.sleep(0.01 + step * 0.07)  # the test varies this moment
                process.send_signal(number)
                try:
                    _, err = process.communicate(timeout=20)
                finally:
                    process.kill()
            assert b"Traceback" not in err, (step, err.decode())
            assert b"Exception ignored" not in err, (step, err.decode())
            by_signal = -number if number == signal.SIGTERM else 130
            assert process.returncode in (0, 1, 130, by_signal), (step, process.returncode)
            (tmp_path / "list.verified.csv").unlink(missing_ok=True)
            (tmp_path / "list.verified.csv.journal").unlink(missing_ok=True)
            assert names_in(tmp_path) == ["list.csv"]


@pytest.mark.parametrize(
    "octets",
    [
        "ann@shop.test\r\nbob@shop.test\r\n".encode("utf-8-sig"),
        "ann@shop.test\nbob@shop.test".encode("utf-16"),
        b"\n\nann@shop.test\n\nbob@shop.test\n",
    ],
)
def test_verify_takes_the_lines_of_standard_input(tmp_path: Path, octets: bytes) -> None:
    done = run("verify", "--json", "-", directory=tmp_path, stdin=octets)
    assert done.returncode == 0
    assert [line.split(b'"')[3] for line in done.stdout.splitlines()] == [
        b"ann@shop.test", b"bob@shop.test",
    ]  # fmt: skip
