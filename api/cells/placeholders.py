"""Placeholders: what stands in a cell where there is no address, such as `n/a`."""

import re
from functools import cache
from pathlib import Path

WORDS_FILE = Path(__file__).with_name("placeholders.txt")
COMMENT = "# "
# A name in Exchange's directory, which Outlook exports for a colleague in place of an address.
DIRECTORY_NAME = re.compile(r"/o=[^@]{1,100}/cn=[^@]*", re.IGNORECASE).fullmatch
CHARACTERS_MAX = 40  # of a cell that may be one; the longest in the file is shorter
AROUND = " \t\u00a0.,;:!?-_*/\\|\"'`´()[]{}<>«»‹›“”„‘’"  # not part of the words, at their ends


def is_placeholder(cell: str) -> bool:
    """Whether a cell, without white space around it, says that there is no address.

    A cell without a letter or a digit, such as `-`, says so too.
    """
    if cell.startswith("/") and DIRECTORY_NAME(cell) is not None:
        return True
    if len(cell) > CHARACTERS_MAX or "@" in cell:
        return False
    words = " ".join(cell.casefold().split())
    return words in _words() or words.strip(AROUND) in _words() or not any(map(str.isalnum, words))


@cache
def _words() -> frozenset[str]:
    lines = WORDS_FILE.read_text("utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith(COMMENT))
