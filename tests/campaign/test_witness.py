"""The witness finds each kind of difference between what was promised and what is stored."""

import json

import pytest
from msgspec.structs import replace

from tests.api.service_process import Credentials
from tests.campaign.witness import Book, Final, Stored, Units, Witness

TEN = Units(10, 4)
BODY = json.dumps({"job_id": "j"}).encode()


def world() -> tuple[Witness, Final]:
    who, plain = (Credentials(id, "builder", "k", "p") for id in ("exact", "plain"))
    witness = Witness([Book(who, True, TEN, TEN), Book(plain, False, Units(20, 9), TEN)])
    witness.jobs.add("j")
    witness.lists["l"] = (3, 5)
    stored = Stored(TEN, TEN, TEN.billable)
    return witness, Final(
        {"exact": stored, "plain": stored}, 0, {"j": "done"}, {"l": ("done", 3, 5)}, {"j": [BODY]}
    )


def test_the_witness_finds_nothing_where_all_is_there() -> None:
    witness, final = world()
    assert witness.compare(final) == []


@pytest.mark.parametrize(
    ("account", "stored", "words"),
    [
        ("exact", Stored(Units(9, 4), Units(9, 4), 4), "lost"),
        ("exact", Stored(Units(11, 5), Units(11, 5), 5), "counted twice"),
        ("exact", Stored(TEN, Units(9, 4), 4), "rows and months differ"),
        ("exact", Stored(TEN, TEN, 3), "rows and days differ"),
        ("plain", Stored(Units(9, 4), Units(9, 4), 4), "lost"),
        ("plain", Stored(Units(21, 9), Units(21, 9), 9), "counted twice"),
    ],
)
def test_the_witness_finds_units_that_differ(account: str, stored: Stored, words: str) -> None:
    witness, final = world()
    found = witness.compare(replace(final, accounts={**final.accounts, account: stored}))
    assert any(words in line and account in line for line in found)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reserved": 1}, "reservations are left"),
        ({"damage": "row 7 missing"}, "damaged"),
        ({"jobs": {"j": "delivering"}}, "job j is delivering"),
        ({"jobs": {}}, "job j is None"),
        ({"delivered": {}}, "with 0 callbacks"),
        ({"delivered": {"j": [BODY, BODY + b" "]}}, "different bodies"),
        ({"delivered": {"j": [b'{"job_id": "x"}']}}, "posted as another one"),
        ({"lists": {"l": ("running", 2, 5)}}, "list l"),
        ({"lists": {"l": ("done", 4, 5)}}, "list l"),
        ({"lists": {}}, "list l is None"),
    ],
)
def test_the_witness_finds_what_was_not_done(change: dict[str, object], words: str) -> None:
    witness, final = world()
    (line,) = witness.compare(replace(final, **change))
    assert words in line


def test_the_witness_finds_an_answer_that_no_client_may_get() -> None:
    witness, final = world()
    witness.wrong.append("/v1/x got 500")
    assert witness.compare(final) == ["/v1/x got 500"]
