"""The journal keeps every answer through kill -9, a torn line, a full disk and a second run."""

import json
import os
from pathlib import Path

import pytest

from mailprobe.api.errors import CommandError, Misuse
from mailprobe.api.listfile.journal import VERSION, Header, open_journal
from tests.api.fake_source import result_of

HEADER = Header(VERSION, 10, "ab" * 32)
ANN, BOB = result_of("ann@shop.test"), result_of("nobody@shop.test")


def begun(path: Path) -> None:
    with open_journal(path, HEADER, resume=False) as journal:
        journal.append(ANN)
        journal.append(BOB)


def refusal(path: Path, header: Header = HEADER, *, resume: bool) -> str:
    with pytest.raises(Misuse) as refused, open_journal(path, header, resume=resume):
        pass
    assert "\n" not in refused.value.message
    assert path.name in refused.value.message
    return refused.value.message


def test_an_answer_is_on_disk_as_soon_as_it_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with open_journal(path, HEADER, resume=False) as journal:
        offset = journal.append(ANN)
        assert json.loads(path.read_bytes()[offset:])["email"] == "ann@shop.test"
    assert path.stat().st_mode & 0o077 == 0


def test_answers_are_found_again_by_their_offset(tmp_path: Path) -> None:
    path = tmp_path / "j"
    begun(path)
    with open_journal(path, HEADER, resume=True) as journal:
        offsets = {verdict.email: offset for offset, verdict in journal.answers()}
        more = journal.append(result_of("full@shop.test"))
        assert journal.answer(offsets["ann@shop.test"]) == ANN
        assert journal.answer(offsets["nobody@shop.test"]) == BOB
        assert journal.answer(more).email == "full@shop.test"


@pytest.mark.parametrize("torn", [b"{", b'{"email":"x@y', b"\0" * 5000])
def test_a_torn_last_line_is_cut_off(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "j"
    begun(path)
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    with open_journal(path, HEADER, resume=True) as journal:
        assert [verdict for _, verdict in journal.answers()] == [ANN, BOB]
        journal.append(ANN)
    assert path.read_bytes()[: len(whole)] == whole
    assert b"\0" not in path.read_bytes()
    with open_journal(path, HEADER, resume=True) as journal:
        assert len(list(journal.answers())) == 3


def test_a_line_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "j"
    begun(path)
    head, ann, bob = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(head + ann[:20] + b"\n" + bob)
    with open_journal(path, HEADER, resume=True) as journal:
        (entry,) = journal.answers()
        assert entry[1] == BOB
        assert journal.answer(entry[0]) == BOB


@pytest.mark.parametrize(
    "damage",
    [
        (b"ann@", b"\xff\xfen@"),
        (b"ann@", b"\0\0\0@"),
        (b"0.97", b"0.17"),
        (b'"valid":true', b'"valid":fals'),
        (b"ann@", b"bnn@"),
        (b'"deliverable"', b'"deliverably"'),
        (b'"crc":', b'"crc":1'),
        (b'"crc":', b'"crc":x'),
    ],
)
def test_a_damaged_line_is_left_out_and_counted(
    tmp_path: Path, damage: tuple[bytes, bytes]
) -> None:
    path = tmp_path / "j"
    begun(path)
    octets = path.read_bytes()
    assert damage[0] in octets
    path.write_bytes(octets.replace(*damage, 1))
    with open_journal(path, HEADER, resume=True) as journal:
        assert [verdict for _, verdict in journal.answers()] == [BOB]
        assert journal.damaged == 1


def test_answers_are_removed_from_the_end(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with open_journal(path, HEADER, resume=False) as journal:
        journal.append(ANN)
        journal.cut(journal.append(BOB))
        assert [result for _, result in journal.answers()] == [ANN]
        journal.cut(0)
        assert list(journal.answers()) == []
        journal.append(BOB)
    with open_journal(path, HEADER, resume=True) as journal:
        assert [result for _, result in journal.answers()] == [BOB]


def test_a_journal_truncated_while_in_use_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with open_journal(path, HEADER, resume=False) as journal:
        offset = journal.append(ANN)
        os.truncate(path, offset + 5)
        with pytest.raises(CommandError, match="changed or damaged"):
            journal.answer(offset)


def test_an_unfinished_run_is_neither_overwritten_nor_resumed_by_default(tmp_path: Path) -> None:
    path = tmp_path / "j"
    begun(path)
    message = refusal(path, resume=False)
    assert "2 answers" in message
    assert "--resume" in message
    assert "delete" in message


def test_a_journal_without_an_answer_is_in_nobodys_way(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with open_journal(path, HEADER, resume=False):
        pass
    with open_journal(path, HEADER, resume=False) as journal:
        assert list(journal.answers()) == []


@pytest.mark.parametrize("resume", [True, False])
def test_a_journal_of_another_list_is_refused(tmp_path: Path, resume: bool) -> None:
    path = tmp_path / "j"
    begun(path)
    assert "another list" in refusal(path, Header(VERSION, 11, "cd" * 32), resume=resume)


@pytest.mark.parametrize("octets", [b"hello\n", b"{", b"[]\n", b"\xff" * 3000, b"\xff\n"])
def test_a_file_that_is_no_journal_is_refused_and_kept(tmp_path: Path, octets: bytes) -> None:
    path = tmp_path / "j"
    path.write_bytes(octets)
    assert "not a journal" in refusal(path, resume=True)
    assert path.read_bytes() == octets


def test_another_versions_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_text(f'{{"mailprobe_journal":1,"octets":10,"sha256":"{"ab" * 32}"}}\n')
    assert "another version" in refusal(path, resume=True)


def test_two_runs_cannot_share_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with open_journal(path, HEADER, resume=False):
        assert "another run" in refusal(path, resume=True)
    with open_journal(path, HEADER, resume=True):
        pass


def test_a_journal_that_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    assert "-o" in refusal(tmp_path / "none" / "j", resume=False)


def test_without_a_path_nothing_is_left(tmp_path: Path) -> None:
    with open_journal(None, HEADER, resume=False) as journal:
        offset = journal.append(ANN)
        assert journal.answer(offset) == ANN
