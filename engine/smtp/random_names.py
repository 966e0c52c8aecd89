"""Random local parts that look like a person's and have the shape of an address that is judged.

Some hosts accept by the shape of a name: any first.last, any with a prefix, digits only, any of
at most twelve letters. So a random name is made after the accepted address that it tests, and
what it shows holds for addresses of that shape alone. Each has at least 40 random bits. Pure,
but for chance.
"""

import re
import secrets
from collections.abc import Sequence
from enum import Enum

from msgspec import Struct, field

# What follows such a mark is chosen freely, and what stands before it is a prefix. One of more
# characters is not a prefix that a host would look for.
_PREFIX = re.compile(r".[^-_+=]{0,22}[-_+=]")
DIGITS = 13  # 43 bits: a host that accepts any number accepts so many digits, too


class Shape(Enum):
    """How a local part is made up, as far as a host may judge by it."""

    PLAIN = "plain"  # letters, perhaps with a few digits: at most twelve of them
    DOTTED = "dotted"  # words with dots between them
    DIGITS = "digits"
    PREFIXED = "prefixed"  # a prefix, and what follows it

    __hash__ = object.__hash__


def shape_of(local: str) -> Shape:
    """The shape of a local part."""
    if local.isdigit():
        return Shape.DIGITS
    if _prefix_of(local):
        return Shape.PREFIXED
    return Shape.DOTTED if "." in local else Shape.PLAIN


def _prefix_of(local: str) -> str:
    """The prefix of a local part, which a random name keeps; empty if it has none."""
    found = _PREFIX.match(local)
    return found[0].lower() if found and local.isascii() else ""


# No word is longer than 13 letters. Bits of chance: 6.3 for a syllable of a given name, 6.9 for
# one of a surname, 3 and 4 for their endings: 40.3 with a given name, 40.6 with two initials.
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_GIVEN_ONSETS = "bdfghjklmnprstvw"
_ONSETS = (*"bcdfghjklmnprstvw", *("br", "ch", "dr", "gr", "kr", "st", "tr"))
_VOWELS = "aeiou"
_GIVEN_ENDINGS = ("", "n", "l", "s", "na", "ra", "ka", "no")
_ENDINGS = (
    *("ard", "berg", "dt", "eli", "ens", "er", "ini", "ino"),
    *("ley", "man", "mont", "off", "ova", "ski", "son", "ton"),
)
_SHORT_ONSETS = "bcdfghjklmnprstvwz"  # with a vowel 6.5 bits; with a free letter at the end 40.3
_SHORT_SYLLABLES = 5
_SHORT_CODA = "bcdfghjklmnprstvwxyz"


class _Chance(Struct, eq=False):
    """Draws from one number of the system: one call for each name."""

    _left: int = field(default_factory=lambda: secrets.randbits(80))

    def draw(self, choices: Sequence[str]) -> str:
        self._left, drawn = divmod(self._left, len(choices))
        return choices[drawn]


def random_local(model: str = "", variant: int = 0) -> str:
    """Return a local part of the shape of `model` that does not exist.

    `variant` 1 is of another shape: two initials, a surname and two digits, or without a model
    that is dotted a dotted one.
    """
    chance = _Chance()
    shape = shape_of(model) if model else Shape.DOTTED
    if variant:
        return _dotted(chance) if shape is not Shape.DOTTED else _initials(chance)
    match shape:
        case Shape.DIGITS:
            return "".join(
                chance.draw("123456789" if not n else "0123456789") for n in range(DIGITS)
            )
        case Shape.PREFIXED:
            return _prefix_of(model) + _short(chance)
        case Shape.PLAIN:
            return _short(chance)
    return _dotted(chance)


def _short(chance: _Chance) -> str:
    """A word of at most twelve letters."""
    syllables = (chance.draw(_SHORT_ONSETS) + chance.draw(_VOWELS) for _ in range(_SHORT_SYLLABLES))
    return "".join(syllables) + chance.draw(_SHORT_CODA) + chance.draw(_ALPHABET)


def _surname(chance: _Chance) -> str:
    return "".join(chance.draw(_ONSETS) + chance.draw(_VOWELS) for _ in range(3)) + chance.draw(
        _ENDINGS
    )


def _dotted(chance: _Chance) -> str:
    surname = _surname(chance)
    given = "".join(chance.draw(_GIVEN_ONSETS) + chance.draw(_VOWELS) for _ in range(2))
    return f"{given}{chance.draw(_GIVEN_ENDINGS)}.{surname}"


def _initials(chance: _Chance) -> str:
    initials = chance.draw(_ALPHABET) + chance.draw(_ALPHABET)
    return f"{initials}.{_surname(chance)}{chance.draw('123456789')}{chance.draw('0123456789')}"
