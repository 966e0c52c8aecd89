"""Layer 1: text -> Address, or NotAnAddress (RFC 5321 4.1.2, 5322, 6531, 5890)."""

from dataclasses import dataclass


class NotAnAddress(ValueError):
    """The text is no mail address; the message says why, in words for a person."""


@dataclass(frozen=True, slots=True)
class Address:
    """An address that may be asked about.

    `text` is what was given; `local` is the local part as it goes on the wire
    (quotes kept); `domain` is lower case, A-labels, no dot at the end.
    """

    text: str
    local: str
    domain: str

    @property
    def mailbox(self) -> str:
        return f"{self.local}@{self.domain}"

    @property
    def needs_smtputf8(self) -> bool:
        return not self.local.isascii()


def parse(text: str) -> Address:
    """Read an address, or raise NotAnAddress."""
    raise NotAnAddress(text)
