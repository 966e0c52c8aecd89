"""The index by first letters loses no match."""

import re

import pytest

from mailprobe.engine.smtp.replies.prefilter import HEAD_MAX, first_letters
from mailprobe.engine.smtp.replies.rules import load_rules
from mailprobe.engine.smtp.replies.text import Names, fold, joined
from tests.engine.smtp.replies.reply_rows import ALL_ROWS, reply_of

TABLE = load_rules().table


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("user", {"user"}),
        ("mailbox full", {"mailb"}),
        ("a|bc", {"a", "bc"}),
        ("(?:no|not) user", {"no us", "not u"}),
        (r"\bspf\b", {"spf"}),
        ("e?mail", {"email", "mail"}),
        ("gr[ae]y", {"gray", "grey"}),
        (r"\w+ x", {""}),
        (r"ab\w*", {"ab"}),
        ("(?:the ){0,2}user", {"the ", "user"}),
        ("(?!no )user", {"user"}),
        ("(?<!no )user", {"user"}),
        ("^not", {"not"}),
        (r"full(?: \.)?$", {"full", "full "}),
    ],
)
def test_the_letters_that_a_match_begins_with(pattern: str, found: set[str]):
    assert {head.rstrip("") for head in first_letters(pattern)} >= found
    for head in first_letters(pattern):
        assert any(head.startswith(letters) for letters in found), head


def test_every_match_begins_with_a_head():
    """Each pattern of the rules, at each word of each real reply."""
    matches = 0
    for row in ALL_ROWS:
        words = fold(Names().remove_from(" ".join(reply_of(row).lines)), TABLE.lexicon)
        for text, kind in (
            (joined(words), "text"),
            (TABLE.subjects.mark_subjects(words), "subject"),
        ):
            starts = [0, *(space.end() for space in re.finditer(" ", text))]
            for rule in TABLE.rules:
                pattern = getattr(rule, kind)
                if pattern is None:
                    continue
                for at in starts:
                    if pattern.match(text, at):
                        matches += 1
                        assert any(
                            text[at : at + length] in pattern.first_letters
                            for length in range(HEAD_MAX + 1)
                        ), (rule.reading.rule, text[at:])
    assert matches > 1000
