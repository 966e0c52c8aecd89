"""Proof of work: a challenge is one visitor's, lives for two minutes, and is good once."""

import itertools

import pytest

from mailprobe.api.forms.proof_of_work import BITS_MAX, LIFE_S, ProofOfWork, has_zero_bits

KEY, NETWORK, NOW_S = "0b8f4c1e", "192.0.2.7", 1_764_154_800.0
SECRET = b"s" * 32


def solved(challenge: str, bits: int = 4) -> str:
    return next(
        f"{challenge}:{n}" for n in itertools.count() if has_zero_bits(f"{challenge}:{n}", bits)
    )


def test_another_number_solves_the_same_challenge():
    work = ProofOfWork(SECRET, 1)
    challenge = work.challenge(KEY, NETWORK, NOW_S)
    proofs = [f"{challenge}:{n}" for n in range(100) if has_zero_bits(f"{challenge}:{n}", 1)]
    solved_ones = {work.solved(each, KEY, NETWORK, NOW_S) for each in proofs}
    assert len(solved_ones) == 1
    assert (
        work.solved(solved(work.challenge(KEY, NETWORK, NOW_S)), KEY, NETWORK, NOW_S)
        not in solved_ones
    )


def test_a_challenge_is_remembered_for_as_long_as_it_is_good():
    work = ProofOfWork(SECRET, 4)
    proof = solved(work.challenge(KEY, NETWORK, NOW_S))
    found = work.solved(proof, KEY, NETWORK, NOW_S + LIFE_S)
    assert found is not None
    assert found.until.timestamp() > NOW_S + LIFE_S
    assert work.solved(proof, KEY, NETWORK, found.until.timestamp()) is None


def test_every_process_of_a_service_takes_a_challenge_of_another():
    proof = solved(ProofOfWork(SECRET, 4).challenge(KEY, NETWORK, NOW_S))
    assert ProofOfWork(SECRET, 4).solved(proof, KEY, NETWORK, NOW_S)
    assert not ProofOfWork(b"t" * 32, 4).solved(proof, KEY, NETWORK, NOW_S)


@pytest.mark.parametrize(
    ("key_id", "network", "after_s"),
    [("another", NETWORK, 0), (KEY, "192.0.2.8", 0), (KEY, NETWORK, LIFE_S + 1)],
)
def test_a_proof_is_for_its_key_and_its_visitor_and_in_time(key_id, network, after_s):
    work = ProofOfWork(SECRET, 4)
    proof = solved(work.challenge(KEY, NETWORK, NOW_S))
    assert not work.solved(proof, key_id, network, NOW_S + after_s)
    assert work.solved(proof, KEY, NETWORK, NOW_S)  # a refusal does not use it up


def test_an_easier_challenge_of_before_is_not_taken():
    proof = solved(ProofOfWork(SECRET, 4).challenge(KEY, NETWORK, NOW_S), bits=6)
    assert not ProofOfWork(SECRET, 6).solved(proof, KEY, NETWORK, NOW_S)


def test_a_text_that_is_no_proof_is_not_taken():
    work = ProofOfWork(SECRET, 4)
    challenge = work.challenge(KEY, NETWORK, NOW_S)
    unsolved = next(n for n in itertools.count() if not has_zero_bits(f"{challenge}:{n}", 4))
    later = str(int(challenge[:10]) + 60) + challenge[10:]
    for text in (
        "", ":", "1", challenge, f"{challenge}:", f"{challenge}:{unsolved}", solved(later),
        solved(challenge) + "\n", solved(challenge.replace(".4.", ".0.")), f"{challenge}:{'9' * 5000}",
        f"{challenge}:٣", "x" * 10_000,
    ):  # fmt: skip
        assert not work.solved(text, KEY, NETWORK, NOW_S)


def test_a_proof_is_one_block_of_sha_256():
    challenge = ProofOfWork(SECRET, BITS_MAX).challenge(KEY, NETWORK, NOW_S)
    assert len(f"{challenge}:{2**26}") <= 55
