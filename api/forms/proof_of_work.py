"""Proof of work for forms: a browser computes for a moment before its check is made. Off by default.

A challenge is `expires.bits.random.signature`. A proof is `challenge:number`, whose SHA-256 begins
with so many zero bits (https://en.wikipedia.org/wiki/Hashcash). The service stores no challenge: the
signature binds each to one key and one visitor's network. It stores which were used, until they
expire: each is good once.
It makes many checks dear, and no single one: it slows a program, and stops none.
"""

import hmac
import re
import secrets
from base64 import urlsafe_b64encode
from datetime import UTC, datetime
from hashlib import sha256

from msgspec import Struct

BITS_MAX = 20  # a million tries: five seconds of a laptop, and more of a telephone
LIFE_S = 120  # a visitor corrects an address; no stock of proofs grows old
RANDOM_OCTETS = 6  # 2**48: no two challenges of one second are the same
SIGNATURE_OCTETS = 12  # 96 bits, as many as IPsec keeps of an HMAC (RFC 4868 has more)
# Payload, expires, bits; signature. At most 55 characters: form.js hashes one block of SHA-256.
_PROOF = re.compile(r"((\d{10})\.(\d{1,2})\.[\w-]{8})\.([\w-]{16}):\d{1,15}", re.ASCII)


class Challenge(Struct, frozen=True):
    """What tells a challenge from all others, and until when it is good."""

    id: str
    until: datetime


class ProofOfWork:
    """Makes challenges of `bits` zero bits, and checks their proofs."""

    def __init__(self, secret: bytes, bits: int) -> None:
        self.bits = bits
        self._secret = secret

    def challenge(self, key_id: str, network: str, now_s: float) -> str:
        """A new challenge for a visitor of the key's forms."""
        random = urlsafe_b64encode(secrets.token_bytes(RANDOM_OCTETS)).decode()
        payload = f"{int(now_s) + LIFE_S:010d}.{self.bits}.{random}"
        return f"{payload}.{self._signature(payload, key_id, network)}"

    def solved(self, proof: str, key_id: str, network: str, now_s: float) -> "Challenge | None":
        """The challenge that is solved, if it is one of this key and visitor, and in time."""
        read = _PROOF.fullmatch(proof)
        if read is None:
            return None
        payload, expires, bits, signature = read.groups()
        if not hmac.compare_digest(signature, self._signature(payload, key_id, network)):
            return None
        # Fewer bits than now: made before the setting was raised.
        if int(expires) < now_s or int(bits) < self.bits or not has_zero_bits(proof, self.bits):
            return None
        return Challenge(signature, datetime.fromtimestamp(int(expires) + 1, UTC))

    def _signature(self, payload: str, key_id: str, network: str) -> str:
        signed = f"{payload} {key_id} {network}".encode()
        digest = hmac.digest(self._secret, signed, "sha256")[:SIGNATURE_OCTETS]
        return urlsafe_b64encode(digest).decode()


def has_zero_bits(proof: str, bits: int) -> bool:
    """Whether the proof's SHA-256 begins with so many zero bits."""
    return int.from_bytes(sha256(proof.encode()).digest()[:4]) >> (32 - bits) == 0
