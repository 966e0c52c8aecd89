"""Mail hosts whose answers depend on what a client did before, or on how a name looks. Pure.

Real hosts do all of this: Exim's common recipes and MDaemon refuse or accept everybody
after some unknown recipients, gateways refuse local parts that look made up, and most of
them forgive after a while.
"""

import re

from msgspec import Struct

LONE_DIGITS = re.compile(r"[a-z]\d+[a-z]")  # digits inside a word, not behind it
CONSONANTS = re.compile(r"[bcdfghjklmnpqrstvwxz]{6}")  # five are in Ångström
WORDS = re.compile(r"[^\W\d_]+")
WORD_CHARACTERS_MAX = 14  # a longer one is not a name


class Turning(Struct, frozen=True):
    """When a host stops judging recipients, and what it does from then on.

    It turns with its refusal number `refusals` of an unknown recipient, or `after_s` after
    the first recipient, whichever is first. Then it accepts everybody, or gives everybody
    `reply`. `rest_s` after it turned it judges again, and counts anew.
    """

    refusals: int | None = None
    after_s: float | None = None
    reply: str | None = None
    each_connection: bool = False  # a new connection counts anew; else all of a client's count
    rest_s: float | None = None


class ClientHistory(Struct):
    """What a host remembers for its `Turning`: of one client, or of one connection."""

    first_at_s: float | None = None  # the first recipient; times are trio's
    refusals: int = 0
    turned_at_s: float | None = None

    def has_turned(self, turn: Turning, now: float) -> bool:
        """Whether the host has turned when it gets this recipient."""
        if _has_passed(turn.rest_s, self.turned_at_s, now):
            self.first_at_s, self.refusals, self.turned_at_s = None, 0, None
        if self.first_at_s is None:
            self.first_at_s = now
        if self.turned_at_s is None and _has_passed(turn.after_s, self.first_at_s, now):
            self.turned_at_s = now
        return self.turned_at_s is not None

    def count_refusal(self, turn: Turning, now: float) -> None:
        """Count an unknown recipient that was refused; the last one allowed turns the host."""
        self.refusals += 1
        if turn.refusals is not None and self.refusals >= turn.refusals:
            self.turned_at_s = now


def _has_passed(time_s: float | None, since_s: float | None, now: float) -> bool:
    return time_s is not None and since_s is not None and now - since_s >= time_s


def looks_random(local: str) -> bool:
    """Whether a local part looks made up: digits inside words, consonants in a row, long words.

    Names of people pass, also with a number behind them.
    """
    local = local.lower()
    return (
        LONE_DIGITS.search(local) is not None
        or CONSONANTS.search(local) is not None
        or any(len(word) > WORD_CHARACTERS_MAX for word in WORDS.findall(local))
    )
