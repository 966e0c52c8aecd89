"""The base of the parts of `Store`: each part has the methods of one subject."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from mailprobe.storage.commands import EncryptedFirst, Executor
from mailprobe.storage.encrypted_columns import encrypted_first
from mailprobe.storage.records import Answered, FirstAnswer, IdempotencyRecord

if TYPE_CHECKING:  # it imports cryptography, which not every command line needs
    from mailprobe.storage.encryption import Cipher

T = TypeVar("T")


class StorePart:
    """Hands commands to the executor, and encrypts what must be read again."""

    def __init__(self, executor: Executor, cipher: "Cipher") -> None:
        self.executor = executor
        self._execute = executor.execute
        self._cipher = cipher

    def _encrypted(self, first: FirstAnswer | None) -> EncryptedFirst | None:
        return None if first is None else encrypted_first(self._cipher, first)

    def _encrypting(
        self, idempotency: IdempotencyRecord | None, answer: Callable[[T], Answered] | None
    ) -> Callable[[T], EncryptedFirst] | None:
        """Return a function from a result to the answer that is stored with it; None to store none."""
        if idempotency is None or answer is None:
            return None
        return lambda made: encrypted_first(self._cipher, FirstAnswer(idempotency, answer(made)))
