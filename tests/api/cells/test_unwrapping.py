"""The addresses in a cell are found whatever stands around them, in linear time."""

import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mailprobe.api.cells.placeholders import CHARACTERS_MAX, WORDS_FILE, is_placeholder
from mailprobe.api.cells.unwrapping import ADDRESSES_MAX, doubtful_address, read_cell
from mailprobe.api.listfile.bounds import CELL_CHARACTERS_MAX
from mailprobe.bench.lab.people_cells import PeopleCell, cells
from mailprobe.engine.address import NotAnAddress, parse

CELLS = list(cells())
SECONDS_MAX = 2.0  # of processor time; the slowest takes a tenth


@pytest.mark.parametrize("cell", CELLS, ids=[f"{each.kind} {each.text!r}" for each in CELLS])
def test_a_cell_is_read_as_it_is_meant(cell: PeopleCell) -> None:
    reading = read_cell(cell.text)
    match cell.kind:
        case "none":
            assert reading.addresses == ()
        case "doubtful":
            assert (reading.addresses, reading.suggestion) == ((cell.text,), cell.addresses[0])
        case "bad":
            assert (reading.addresses, reading.suggestion) == ((cell.text,), None)
        case _:
            assert reading.addresses == cell.addresses
            assert reading.suggestion is None
            assert reading.is_unwrapped == (cell.kind != "exact")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("ann@shop.co,uk", "ann@shop.co.uk"),
        ("ann@shop.com;br", "ann@shop.com.br"),
        ("ann@shop.do,com.", "ann@shop.do.com"),
        ("ann@shop.o,rg", "ann@shop.org"),
        ("ann@shop.co m", "ann@shop.com"),
        ("ann@shop.ne t", "ann@shop.net"),
    ],
)
def test_the_end_of_a_domain_behind_a_sign_makes_its_address_doubtful(
    text: str, meant: str
) -> None:
    reading = read_cell(text)
    assert (reading.addresses, reading.suggestion) == ((text,), meant)


@pytest.mark.parametrize(
    "inner", ['"ann@shop.test x"@inner.test', r'"ann \"x\" lee"@inner.test', '"ann lee"@inner.test']
)
def test_a_quoted_local_part_in_brackets_is_taken_whole(inner: str) -> None:
    assert read_cell(f"Ann <{inner}>").addresses == (inner,)


def test_there_are_hundreds_of_different_cells() -> None:
    assert len({each.text for each in CELLS}) == len(CELLS) >= 300


HOSTILE = (
    "a", "@", "a@", "<", '"', "'", "(at", "-at-", "mailto:", "&lt;", "%41", "a@b.test,", ". ", "x.", "’", "e-mail=",
    "\u0651", "\u200b", "_", "\\", "to=", "a=b&", "a=", "a@b.c ", "[at]", " at ", " . ", "@.", "\n", "＠", "=", "<a@b.c>", "&#", "://", "{", "́",
)  # fmt: skip


@pytest.mark.parametrize("end", ["", "@x.test", "x@y.test", '"', ">", " (at) x.test", "mailto:%"])
@pytest.mark.parametrize("piece", HOSTILE)
def test_a_cell_of_the_greatest_length_takes_little_time(piece: str, end: str) -> None:
    cell = piece * (CELL_CHARACTERS_MAX // len(piece)) + end
    began_s = time.process_time()
    read_cell(cell)
    read_cell(end + cell)
    assert time.process_time() - began_s < SECONDS_MAX


def test_a_cell_has_a_limited_number_of_addresses() -> None:
    cell = ";".join(f"a{number}@b.test" for number in range(3_000))
    assert len(read_cell(cell).addresses) == ADDRESSES_MAX


AROUND = st.text("\"'<>()[]{}.,;: \t\n«»“”’＠@a-=&%/*_1é\u200b", max_size=12)


@given(AROUND, AROUND)
@example("1@.", "")
def test_no_address_is_made_up(before: str, after: str) -> None:
    cell = f"{before}ann.lee@shop.test{after}"
    for address in read_cell(cell).addresses:
        assert address in cell or "＠" in cell or "&" in cell or "%" in cell or "’" in cell
    if (meant := doubtful_address(cell)) is not None:
        parse(meant)


@pytest.mark.parametrize("address", ["'ann'@shop.test", "*ann*@shop.test", "`a`@shop.test"])
def test_a_pair_of_signs_in_a_local_part_is_left_whole(address: str) -> None:
    """Half of it would be the address of somebody else."""
    assert read_cell(address).addresses == (address,)


@given(st.emails())
def test_an_address_is_taken_as_it_is(address: str) -> None:
    try:
        parse(address)
    except NotAnAddress:
        return
    named = re.match(r"[\w.%&?-]+(=|%3a)", address, re.IGNORECASE)
    signs = address.lower().startswith(("%20", "=20", "=3c", *"'`*~-"))
    assert read_cell(address).addresses == (address,) or named or signs


@pytest.mark.parametrize(
    "address",
    [
        "prvs=0123456789=ann@shop.test",
        "ann+to=bob@shop.test",
        "bounce-user=x.test@list.test",
        "to.x=y@shop.test",
    ],
)
def test_an_equals_sign_in_a_local_part_is_not_a_label(address: str) -> None:
    assert read_cell(address).addresses == (address,)


def test_placeholders_are_listed_once_in_lower_case_with_their_sources() -> None:
    lines = WORDS_FILE.read_text("utf-8").splitlines()
    words = [line for line in lines if line and not line.startswith("# ")]
    assert len(words) == len(set(words)) > 150
    assert all(line == line.casefold() and len(line) <= CHARACTERS_MAX for line in words)
    assert all(map(is_placeholder, words))
    assert not any("@" in word for word in words)
