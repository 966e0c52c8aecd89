"""Reply -> Meaning, by the rules in data/replies.toml."""

from dataclasses import dataclass
from enum import Enum

from engine.smtp.wire import Reply


class Step(Enum):
    """What was asked when the reply came."""

    BANNER = "banner"
    HELLO = "hello"
    MAIL = "mail"
    RCPT = "rcpt"


class Meaning(Enum):
    """What a reply says; only NO_MAILBOX and DISABLED of a 5xx make an address undeliverable."""

    ACCEPTED = "accepted"
    NO_MAILBOX = "no_mailbox"
    DISABLED = "disabled"
    MAILBOX_FULL = "mailbox_full"
    GREYLISTED = "greylisted"
    RATE_LIMITED = "rate_limited"
    TEMPORARY = "temporary"
    BLOCKED_POLICY = "blocked_policy"
    BAD_HELO_OR_RDNS = "bad_helo_or_rdns"
    RELAY_DENIED = "relay_denied"
    NEEDS_AUTH = "needs_auth"
    SYNTAX = "syntax"
    ANOTHER_RECIPIENT = "another_recipient"  # objects to one more recipient here: ask it by itself
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reply was read as, and by which rule."""

    meaning: Meaning
    rule: str
    about_us: bool = False  # speaks of our address, name or standing: the host wants rest


class Rules:
    def read(self, step: Step, reply: Reply) -> Reading:
        raise LookupError(step, reply)


def load_rules() -> Rules:
    return Rules()
