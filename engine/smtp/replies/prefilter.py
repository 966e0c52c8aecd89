"""Finds the letters that a match of a pattern can begin with.

An index by these letters selects the patterns to try at each word. The parser supports
only the syntax that the rules use: literals, `\\b`, `^`, classes, `(?:a|b)`, look-arounds
and quantifiers. Anything else counts as any letter, which costs tries but loses no match.

The first reply that is read waits for all patterns, so what cannot matter is skipped: the
rest of an alternative whose letters suffice, and look-arounds.
"""

import re

HEAD_MAX = 5  # letters compared

# Leading letters, and whether further items extend them: after ("re", False) comes anything.
Head = tuple[str, bool]
EMPTY: frozenset[Head] = frozenset({("", True)})
ANYTHING: frozenset[Head] = frozenset({("", False)})
QUANTIFIERS = "?*+{"
_LITERALS = re.compile(r"[^\\.^$|()\[?*+{]+(?![?*+{])")  # a letter with a quantifier is an item
_MARKS = re.compile(r"\\.|\[[^\]]*\]|[()|]", re.DOTALL)  # what can end an alternative, or hide it


def first_letters(pattern: str) -> frozenset[str]:
    """Return beginnings of at most HEAD_MAX letters. Every match begins with one of them."""
    found, _ = _alternatives(pattern, 0)
    return frozenset(letters for letters, _ in found)


def _alternatives(pattern: str, at: int) -> tuple[frozenset[Head], int]:
    """Return the heads of all alternatives, and where the group (or the pattern) ends."""
    found: set[Head] = set()
    branch = EMPTY
    while at < len(pattern) and pattern[at] != ")":
        if pattern[at] == "|":
            found |= branch
            branch = EMPTY
            at += 1
            continue
        if not any(is_extended for _, is_extended in branch):
            at = _alternative_end(pattern, at)
            continue
        if run := _LITERALS.match(pattern, at):
            item, at = _letters(run[0]), run.end()
        else:
            item, at = _item(pattern, at)
            item, at = _quantified(pattern, at, item)
        branch = _then(branch, item)
    return frozenset(found | branch), at


def _alternative_end(pattern: str, at: int) -> int:
    """Where the alternative ends that `at` is in: at a `|`, a `)`, or the pattern's end."""
    depth = 0
    for mark in _MARKS.finditer(pattern, at):
        if mark[0] == "(":
            depth += 1
        elif not depth and mark[0] in ("|", ")"):
            return mark.start()
        elif mark[0] == ")":
            depth -= 1
    return len(pattern)


def _group_end(pattern: str, at: int) -> int:
    """Behind the group that begins before `at`."""
    while (at := _alternative_end(pattern, at)) < len(pattern) and pattern[at] == "|":
        at += 1
    return at + 1


def _item(pattern: str, at: int) -> tuple[frozenset[Head], int]:
    letter = pattern[at]
    if letter == "(":
        return _group(pattern, at)
    if letter == "[":
        return _letter_class(pattern, at)
    if letter == "\\":
        escaped = pattern[at + 1]
        if escaped == "b":
            return EMPTY, at + 2
        return (ANYTHING if escaped.isalnum() else _letters(escaped)), at + 2
    if letter in "^$":
        return EMPTY, at + 1
    return (ANYTHING if letter == "." else _letters(letter)), at + 1


def _group(pattern: str, at: int) -> tuple[frozenset[Head], int]:
    kind = pattern[at + 1 : at + 4]
    inside = at + (3 if kind[:2] == "?:" or kind[1:2] in ("=", "!") else 1)
    if kind[:2] in ("?=", "?!") or kind in ("?<=", "?<!"):
        return EMPTY, _group_end(pattern, at + 1)
    found, end = _alternatives(pattern, inside)
    return found, end + 1


def _letter_class(pattern: str, at: int) -> tuple[frozenset[Head], int]:
    end = pattern.index("]", at + 1)
    inside = pattern[at + 1 : end]
    if any(special in inside for special in "\\^-"):
        return ANYTHING, end + 1
    return frozenset((letter, True) for letter in inside), end + 1


def _letters(literal: str) -> frozenset[Head]:
    return frozenset({(literal, True)})


def _quantified(pattern: str, at: int, item: frozenset[Head]) -> tuple[frozenset[Head], int]:
    if at >= len(pattern) or pattern[at] not in QUANTIFIERS:
        return item, at
    optional = pattern[at] in "?*" or pattern[at : at + 3] in ("{0,", "{,")
    once = pattern[at] == "?"
    at = pattern.index("}", at) + 1 if pattern[at] == "{" else at + 1
    if at < len(pattern) and pattern[at] in "?+":  # lazy, possessive
        at += 1
    if not once:
        item = frozenset((letters, False) for letters, _ in item)
    return (item | EMPTY if optional else item), at


def _then(first: frozenset[Head], second: frozenset[Head]) -> frozenset[Head]:
    """Return the heads of `first` followed by `second`."""
    found: set[Head] = set()
    for letters, open_ended in first:
        if not open_ended or len(letters) >= HEAD_MAX:
            found.add((letters[:HEAD_MAX], False))
            continue
        for more, still in second:
            both = letters + more
            found.add((both[:HEAD_MAX], still and len(both) < HEAD_MAX))
    return frozenset(found)
