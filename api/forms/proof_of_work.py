"""Proof of work for forms: a browser computes for a moment before its check is made. Off by default.

A challenge is `expires.bits.random.signature`. A proof is `challenge:number`, whose SHA-256 begins
with so many zero bits (https://en.wikipedia.org/wiki/Hashcash). The service stores no challenge: the
signature binds each to one key and one visitor's network. A proof is good once in each process.
It makes many checks dear, and no single one: it slows a program, and stops none.
"""

import hmac
import re
import secrets
from base64 import urlsafe_b64encode
from collections import OrderedDict
from hashlib import sha256

BITS_MAX = 20  # a million tries: five seconds of a laptop, and more of a telephone
LIFE_S = 120  # a visitor corrects an address; no stock of proofs grows old
RANDOM_OCTETS = 6  # 2**48: no two challenges of one second are the same
SIGNATURE_OCTETS = 12  # 96 bits, as many as IPsec keeps of an HMAC (RFC 4868 has more)
SPENT_MAX = 100_000  # proofs, some 15 MB; beyond, the oldest is forgotten and is good once more
# Payload, expires, bits; signature. At most 55 characters: form.js hashes one block of SHA-256.
_PROOF = re.compile(r"((\d{10})\.(\d{1,2})\.[\w-]{8})\.([\w-]{16}):\d{1,15}", re.ASCII)


class ProofOfWork:
    """Makes challenges of `bits` zero bits, and takes each proof once."""

    def __init__(self, secret: bytes, bits: int) -> None:
        self.bits = bits
        self._secret = secret
        self._spent: OrderedDict[str, float] = OrderedDict()  # signature -> when it expires

    def challenge(self, key_id: str, network: str, now_s: float) -> str:
        """A new challenge for a visitor of the key's forms."""
        random = urlsafe_b64encode(secrets.token_bytes(RANDOM_OCTETS)).decode()
        payload = f"{int(now_s) + LIFE_S:010d}.{self.bits}.{random}"
        return f"{payload}.{self._signature(payload, key_id, network)}"

    def takes(self, proof: str, key_id: str, network: str, now_s: float) -> bool:
        """Whether it is a proof of this key and visitor, in time, not used; it is used then."""
        read = _PROOF.fullmatch(proof)
        if read is None:
            return False
        payload, expires, bits, signature = read.groups()
        if not hmac.compare_digest(signature, self._signature(payload, key_id, network)):
            return False
        # Fewer bits than now: made before the setting was raised.
        if int(expires) < now_s or int(bits) < self.bits or not has_zero_bits(proof, self.bits):
            return False
        return self._spend(signature, int(expires), now_s)

    def _spend(self, signature: str, expires: float, now_s: float) -> bool:
        if signature in self._spent:
            return False
        self._spent[signature] = expires
        oldest = next(iter(self._spent))
        if self._spent[oldest] < now_s or len(self._spent) > SPENT_MAX:
            del self._spent[oldest]
        return True

    def _signature(self, payload: str, key_id: str, network: str) -> str:
        signed = f"{payload} {key_id} {network}".encode()
        digest = hmac.digest(self._secret, signed, "sha256")[:SIGNATURE_OCTETS]
        return urlsafe_b64encode(digest).decode()


def has_zero_bits(proof: str, bits: int) -> bool:
    """Whether the proof's SHA-256 begins with so many zero bits."""
    return int.from_bytes(sha256(proof.encode()).digest()[:4]) >> (32 - bits) == 0
