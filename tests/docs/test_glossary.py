"""dev/glossary.md: few terms in order, each with its source and a module that uses it."""

import re

from tests.docs.pages import ROOT, bare, table_of

TERMS_MAX = 40


def terms() -> list[list[str]]:
    return table_of("dev/glossary.md", "term", "meaning", "source", "module")


def test_the_terms_are_few_and_in_order() -> None:
    names = [row[0].lower() for row in terms()]
    assert names == sorted(set(names))
    assert len(names) <= TERMS_MAX


def test_every_term_has_a_source() -> None:
    """Either a published one, or `ours` if the term was chosen for this code base."""
    published = re.compile(
        r"RFC \d{3,4}|\b(?:19|20)\d\d\b|draft-ietf-|README|Standard|Go,|Exchange,"
    )
    for term, _, source, _ in terms():
        assert source.startswith("ours") or published.search(source), term


def test_every_term_names_a_module_of_ours() -> None:
    for term, _, _, module in terms():
        assert (ROOT / bare(module)).is_file(), term
