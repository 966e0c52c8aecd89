"""`clean` opens no existing file but its input, and its output has the right permissions."""

import os
import stat
from pathlib import Path

import pytest

from mailprobe.api.cli.cleaning.outputs import Order
from mailprobe.api.listfile.replacing import replacing
from tests.api.cli.test_clean import LIST, clean, mailprobe, names_in, refused, written


@pytest.mark.parametrize("ending", [".part", ".journal", ".tmp", ".new"])
def test_a_list_whose_name_is_the_outputs_and_an_ending_stays_as_it_is(
    tmp_path: Path, ending: str
) -> None:
    path = written(tmp_path / f"list.csv{ending}")
    output = tmp_path / "list.csv"
    if ending == ".journal":  # the answers would go there
        assert "is the list itself" in refused(Order(path, output))
    else:
        clean(Order(path, output))
        assert output.read_text().startswith("name,email,mailprobe_email,")
    assert path.read_text() == LIST


def test_a_file_named_like_a_part_of_the_output_is_nobodys(tmp_path: Path) -> None:
    path = written(tmp_path / "list.csv")
    treasure = written(tmp_path / "treasure", "precious")
    (tmp_path / "o.csv.part").symlink_to(treasure)
    written(tmp_path / "p.csv.part", "precious")
    clean(Order(path, tmp_path / "o.csv"))
    clean(Order(path, tmp_path / "p.csv"))
    assert treasure.read_text() == "precious"
    assert (tmp_path / "p.csv.part").read_text() == "precious"
    assert (tmp_path / "o.csv.part").is_symlink()
    assert len(names_in(tmp_path)) == 6


@pytest.mark.parametrize("link", ["symbolic", "hard"])
@pytest.mark.parametrize("where", ["output", "journal"])
def test_the_list_under_another_name_is_no_output(tmp_path: Path, link: str, where: str) -> None:
    path = written(tmp_path / "list.csv")
    name = tmp_path / ("o.csv" if where == "output" else "o.csv.journal")
    (name.symlink_to if link == "symbolic" else name.hardlink_to)(path)
    assert "the list itself" in refused(Order(path, tmp_path / "o.csv"))
    assert path.read_text() == LIST


def test_a_link_or_a_pipe_in_the_journals_place_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "list.csv")
    treasure = written(tmp_path / "treasure", "")
    (tmp_path / "o.csv.journal").symlink_to(treasure)
    assert "not a journal" in refused(Order(path, tmp_path / "o.csv"))
    assert treasure.read_text() == ""
    os.mkfifo(tmp_path / "p.csv.journal")
    assert "not a journal" in refused(Order(path, tmp_path / "p.csv"))


def test_standard_input_and_output_that_are_one_file_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "list.csv")
    with path.open("rb") as stdin, path.open("ab") as stdout:
        for words in (["-"], ["list.csv", "-o", "-"], ["-", "-o", "list.csv"]):
            with mailprobe(
                "clean", *words, directory=tmp_path, stdin_file=stdin, stdout_file=stdout
            ) as child:
                code, _, err = child.end()
            assert code == 2, words
            assert "the list itself" in err
            assert path.read_text() == LIST


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_a_new_output_has_the_mode_that_the_umask_leaves(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with replacing(tmp_path / "o") as file:
            file.write(b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "o").stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_an_output_keeps_the_mode_of_the_file_that_it_replaces(tmp_path: Path, mode: int) -> None:
    output = written(tmp_path / "o.csv", "old")
    output.chmod(mode)
    clean(Order(written(tmp_path / "list.csv"), output, force=True))
    assert stat.S_IMODE(output.stat().st_mode) == mode


def test_an_unfinished_output_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    with replacing(tmp_path / "o") as file:
        (part,) = tmp_path.iterdir()
        assert stat.S_IMODE(part.stat().st_mode) == 0o600
        file.write(b"x")
    assert names_in(tmp_path) == ["o"]


def leftover_of(output: Path) -> Path:
    """Return what a run leaves behind that is killed while it writes the output."""
    with replacing(output):
        (part,) = output.parent.glob(f".{output.name[:50]}*.mailprobe-*.part")
        (output.parent / "copy").write_bytes(b"half")
    return (output.parent / "copy").rename(part)


def test_files_of_a_killed_run_are_removed_by_the_next(tmp_path: Path) -> None:
    for name in ("o.csv", "é" * 120 + ".csv"):
        leftover = leftover_of(tmp_path / name)
        assert leftover.name.startswith(f".{name[:80]}")
        clean(Order(written(tmp_path / "list.csv"), tmp_path / name, force=True))
        assert names_in(tmp_path) == ["list.csv", name]
        (tmp_path / name).unlink()


def test_files_of_other_runs_and_users_stay(tmp_path: Path) -> None:
    output = tmp_path / "o.csv"
    leftover = leftover_of(output)
    others = [
        leftover_of(tmp_path / "p.csv"),
        written(tmp_path / f"{leftover.name}x"),
        written(tmp_path / leftover.name.replace(".o.csv", "o.csv")),
    ]
    link, fifo, linked = (tmp_path / f".o.csv.mailprobe-{n:016x}.part" for n in range(3))
    link.symlink_to(others[0])
    os.mkfifo(fifo)
    linked.hardlink_to(others[1])
    with replacing(output) as file:
        file.write(b"first")
        file.flush()
        with replacing(output) as second:
            second.write(b"second")
        assert output.read_bytes() == b"second"
    assert output.read_bytes() == b"first"
    assert not leftover.exists()
    assert all(path.exists() for path in [*others, fifo, linked])
    assert link.is_symlink()
