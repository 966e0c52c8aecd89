"""Bounces of many mail servers, and mails that are none: who bounced, and why."""

import mailbox
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailprobe.api.bounces.kinds import KINDS, Kind
from mailprobe.api.bounces.reports import bounces_of
from mailprobe.api.cli.scoring.bounces import read_bounces
from mailprobe.api.listfile.survey import BadList

SAMPLES = Path(__file__).with_name("bounce_samples.txt")
NONE, UNREAD = "-", "?"


def samples() -> dict[str, tuple[str, bytes]]:
    """The name of each sample with what is expected of it and its octets."""
    found = {}
    for sample in re.split(r"^=== ", SAMPLES.read_text(encoding="utf-8"), flags=re.M)[1:]:
        head, _, mail = sample.partition("\n")
        name, _, expected = head.rpartition(": ")
        assert name not in found
        found[name] = (expected, mail.encode())
    return found


ALL = samples()


def expected_of(words: str) -> dict[str, Kind] | None:
    if words == NONE:
        return None
    parts = [] if words == UNREAD else words.split(", ")
    by_name: dict[str, Kind] = {kind: kind for kind in KINDS}
    return {part.split(" ")[0]: by_name[part.split(" ")[1]] for part in parts}


@pytest.mark.parametrize("name", ALL)
def test_a_mail_is_read_as_what_it_is(name: str) -> None:
    words, octets = ALL[name]
    assert bounces_of(octets) == expected_of(words)


@pytest.mark.parametrize("name", ALL)
def test_the_line_ends_change_nothing(name: str) -> None:
    """Mail on the wire ends its lines with CRLF."""
    words, octets = ALL[name]
    assert bounces_of(octets.replace(b"\n", b"\r\n")) == expected_of(words)


def test_there_are_samples_of_every_kind() -> None:
    kinds = [kind for words, _ in ALL.values() for kind in (expected_of(words) or {}).values()]
    assert set(kinds) == set(KINDS)
    assert len(ALL) >= 40


def counted(path: Path) -> tuple[dict[str, Kind], int, int]:
    found = read_bounces(path)
    return dict(found.kinds), found.unread, found.others


@pytest.fixture
def expected() -> tuple[dict[str, Kind], int, int]:
    """What all samples together give; each address keeps its gravest kind."""
    kinds: dict[str, Kind] = {}
    for words, _ in ALL.values():
        for address, kind in (expected_of(words) or {}).items():
            kinds[address] = min(kinds.get(address, kind), kind, key=KINDS.index)
    kinds["jörg@xn--strae-oqa.test"] = kinds.pop("jörg@straße.test")
    none = sum(words == NONE for words, _ in ALL.values())
    unread = sum(words == UNREAD for words, _ in ALL.values())
    return kinds, none + unread, none


def test_an_mbox_is_read(tmp_path: Path, expected: object) -> None:
    box = mailbox.mbox(tmp_path / "box")
    for _, octets in ALL.values():
        box.add(octets)
    box.close()
    assert counted(tmp_path / "box") == expected


def test_a_maildir_is_read_without_what_is_being_delivered(
    tmp_path: Path, expected: object
) -> None:
    box = mailbox.Maildir(tmp_path / "box")
    for place, (_, octets) in enumerate(ALL.values()):
        key = box.add(octets)
        if place % 2:  # it was seen
            message = box[key]
            message.set_subdir("cur")
            message.set_flags("S")
            box[key] = message
    (tmp_path / "box/tmp/half").write_bytes(b"From: MAILER-DAEMON@x.test\nTo: a@b.test\n")
    (tmp_path / "box/dovecot-uidlist").write_text("3 V1 N1\n")
    assert counted(tmp_path / "box") == expected


@pytest.mark.parametrize("place", [".", "2026/november"])
def test_a_folder_of_mails_is_read(tmp_path: Path, place: str, expected: object) -> None:
    folder = tmp_path / place
    folder.mkdir(parents=True, exist_ok=True)
    for number, (_, octets) in enumerate(ALL.values()):
        (folder / f"{number}.eml").write_bytes(octets)
    (folder / "notes.csv").write_text("email\nx@y.test\n")
    assert counted(tmp_path) == expected


@pytest.mark.parametrize("name", ["one.eml", "one"])
def test_a_file_of_one_mail_is_read(tmp_path: Path, name: str) -> None:
    words, octets = ALL["exim, three addresses with three reasons"]
    (tmp_path / name).write_bytes(octets)
    assert counted(tmp_path / name) == (expected_of(words), 0, 0)


def test_a_list_is_no_mail_whatever_its_header_says(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("To: ,reason\nann@shop.test,hard\n")
    assert counted(tmp_path / "list.csv")[0] == {"ann@shop.test": "no_mailbox"}


def test_a_file_without_bounces_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.eml").write_bytes(b"")
    for name in ("missing", "missing.eml", "empty"):
        with pytest.raises(BadList, match="cannot be read") as failed:
            read_bounces(tmp_path / name)
        assert "\n" not in failed.value.message
    assert counted(tmp_path / "empty.eml") == ({}, 1, 1)


ROWS = {
    "hard,550 5.1.1 <ann@shop.test>: User unknown": "no_mailbox",
    ",550 5.1.1 <ann@shop.test>: User unknown": "no_mailbox",
    "soft,": "temporary",
    ",": None,
    "bounce,Undetermined": "unknown",
    "Permanent,General": "no_mailbox",
    "Transient,MailboxFull": "temporary",
    "bounced,554 5.7.1 blocked by policy": "refused",
    "delivered,250 2.0.0 OK": None,
    "complaint,": None,
    "open,": None,
}


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_an_export_says_why(tmp_path: Path, row: str) -> None:
    """A name or a campaign is no reason, even if it sounds like one."""
    (tmp_path / "export.csv").write_text(
        f"name,email,event,reason,campaign\nFull Block,ann@shop.test,{row},Full price policy\n"
    )
    assert counted(tmp_path / "export.csv")[0].get("ann@shop.test") == ROWS[row]


@given(text=st.text(max_size=2_000), name=st.sampled_from(sorted(ALL)))
def test_no_text_ends_the_reading(text: str, name: str) -> None:
    _, octets = ALL[name]
    for damaged in (
        octets + text.encode("utf-8", "replace"),
        text.encode("utf-8", "replace") + octets,
        octets[: len(octets) // 2] + text.encode("utf-8", "replace"),
    ):
        bounces_of(damaged)
