"""Keys: their form, their checksum, and what the store keeps of them."""

import hashlib
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailprobe.api.keys import ALPHABET, key_hash, kind_of, mint, shown, well_formed


@pytest.mark.parametrize(
    ("prefix", "kind"),
    [
        ("sk_live_", "standard"),
        ("sk_test_", "test"),
        ("sk_mgmt_", "provisioning"),
        ("pk_live_", "form"),
        ("pk_test_", "form_test"),
    ],
)
def test_a_key_is_its_prefix_43_characters_and_a_check_sum(prefix: str, kind: str) -> None:
    key = mint(prefix)  # type: ignore[arg-type]
    assert key.startswith(prefix)
    assert len(key) == 8 + 43 + 6
    assert kind_of(key) == kind
    number = 0
    for character in key[-6:]:
        number = number * 62 + ALPHABET.index(character)
    assert number == zlib.crc32(key[:-6].encode())
    assert well_formed(key)


def test_the_secret_comes_from_the_source_that_is_handed_in() -> None:
    draws: list[int] = []

    def draw(below: int) -> int:
        draws.append(below)
        return len(draws) % below

    assert mint("sk_live_", draw)[8:14] == "123456"
    assert draws == [62] * 43


def test_43_characters_of_62_are_more_than_256_bits() -> None:
    assert 62**43 > 2**256
    assert 62**6 > 2**32


def test_no_two_keys_are_alike() -> None:
    assert len({mint("sk_live_") for _ in range(1000)}) == 1000


@given(st.integers(0, 56), st.sampled_from(ALPHABET + "_-é "))
def test_one_wrong_character_is_noticed(place: int, character: str) -> None:
    key = mint("sk_live_", lambda below: 7)
    wrong = key[:place] + character + key[place + 1 :]
    assert well_formed(wrong) == (wrong == key)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sk_live_",
        "x" * 57,
        "sk_prod_" + "0" * 49,
        mint("sk_live_", lambda below: 7) + "\n",
        "sk_live_é",
    ],
)
def test_an_invalid_key_is_recognized_by_its_form(text: str) -> None:
    assert not well_formed(text)


def test_only_the_hash_and_twelve_characters_are_kept() -> None:
    key = mint("sk_live_")
    assert key_hash(key) == hashlib.sha256(key.encode()).hexdigest()
    assert shown(key) == key[:12]
