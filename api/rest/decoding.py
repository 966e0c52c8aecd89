"""Decodes a request body into the operation's type, or says what is wrong with it.

Strict JSON: UTF-8 without a byte order mark, no NaN, no lone surrogates, bounded
nesting. A known field may appear once only: RFC 8259 leaves open which of two counts,
and the wrong one costs money. Unknown fields are ignored and not stored, so that
memory stays bounded by the size of the body.
"""

import re
import time
from collections import Counter
from math import inf
from typing import TypeVar

import msgspec
import trio

from ..admission.turns import FairTurns
from ..operations.operation import JSON
from ..refusals import InvalidRequest, Section

THREAD_OCTETS = 64 * 1024  # larger bodies are parsed in a thread: they would delay other requests
STRINGS_MAX = 10_000  # in a large body: half a million take 20 ms to create
THREADS_MAX = 1  # bodies parsed in threads at a time: each holds the GIL
PARSE_WAIT_S = 10.0  # a client that waits longer for a verdict has gone
LARGE_SHARE = 0.05  # of one CPU's time, for large bodies: an ordinary request has a few KiB

TOO_MANY_PARTS = "The body has more parts than a request of this service ever needs."

T = TypeVar("T", bound=msgspec.Struct)

_threads = trio.CapacityLimiter(THREADS_MAX)


class _ParsePace:
    """Limits the CPU time spent on large bodies, over all requests."""

    def __init__(self) -> None:
        self._turns = FairTurns(THREADS_MAX, wait_s=PARSE_WAIT_S)
        self._idle_at = -inf

    async def parse(self, octets: bytes, kind: type[T], section: Section, account_id: str) -> T:
        """Parse in a thread, after a pause in proportion to the CPU time of the previous body."""
        async with self._turns.turn(account_id):
            await trio.sleep_until(max(self._idle_at, trio.current_time()))
            took = _ParseTook()
            try:
                return await trio.to_thread.run_sync(
                    _timed, took, octets, kind, section, limiter=_threads
                )
            finally:
                self._idle_at = trio.current_time() + (took.cpu_s * (1 / LARGE_SHARE - 1))


class _ParseTook:
    cpu_s = 0.0


def _timed(took: _ParseTook, octets: bytes, kind: type[T], section: Section) -> T:
    began_s = time.thread_time()
    try:
        return read(octets, kind, section)
    finally:
        took.cpu_s = time.thread_time() - began_s


_paces = trio.lowlevel.RunVar[_ParsePace]("pace")


def _pace() -> _ParsePace:
    try:
        return _paces.get()
    except LookupError:
        pace = _ParsePace()
        _paces.set(pace)
        return pace


def check_media_type(header: str | None, section: Section) -> None:
    """Raise InvalidRequest for a type other than JSON in UTF-8. No header counts as JSON."""
    if header is None:
        return
    media_type, *parameters = (part.strip().lower() for part in header.split(";"))
    charsets = [text.partition("=")[2].strip('" ') for text in parameters if "charset" in text]
    if media_type != JSON or charsets not in ([], ["utf-8"]):
        raise InvalidRequest(
            f"The body's Content-Type is {header[:80]!r}; it takes {JSON} in UTF-8.", section
        )


async def parse(octets: bytes, kind: type[T], section: Section, account_id: str) -> T:
    """Decode a body. Raises InvalidRequest; its `was_json` says whether the body was JSON.

    Large bodies take turns by account. Raises Overloaded for one that waits too long.
    """
    if len(octets) <= THREAD_OCTETS:
        return read(octets, kind, section)
    return await _pace().parse(octets, kind, section, account_id)


def read(octets: bytes, kind: type[T], section: Section) -> T:
    """Decode in the calling task. Raises InvalidRequest."""
    if len(octets) > THREAD_OCTETS and _strings_at_least(octets) > STRINGS_MAX:
        raise InvalidRequest(TOO_MANY_PARTS, section)
    try:
        octets.decode()  # ignored parts must be UTF-8 as well
        body = msgspec.json.decode(octets, type=kind)
        twice = _field_twice(octets, kind.__struct_fields__)
    except msgspec.ValidationError as error:
        _must_be_json(octets, section)
        raise InvalidRequest(_explain(str(error)), section, was_json=True) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _not_json(octets, error, section) from None
    except _TooManyParts:
        raise InvalidRequest(TOO_MANY_PARTS, section, was_json=True) from None
    if twice is not None:
        raise InvalidRequest(f"The field {twice} is there twice.", section, was_json=True)
    return body


def _strings_at_least(octets: bytes) -> int:
    """A lower bound of the number of strings, at most a factor of two too low.

    A quote after a backslash may belong to a string.
    """
    return (octets.count(b'"') - octets.count(b'\\"')) // 2


def _must_be_json(octets: bytes, section: Section) -> None:
    """Raise InvalidRequest unless the whole body is JSON: decoding stops at a wrong type."""
    try:
        msgspec.json.decode(octets, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _not_json(octets, error, section) from None


def _not_json(octets: bytes, error: Exception, section: Section) -> InvalidRequest:
    match error:
        case _ if not octets:
            why = "There is no body; it takes a JSON object."
        case UnicodeDecodeError(start=start):
            why = f"The body is not in UTF-8 (byte {start})."
        case RecursionError():
            why = "The body is nested too deeply."
        case _ if octets.startswith(b"\xef\xbb\xbf"):
            why = "The body begins with a byte order mark; JSON has none."
        case _:
            why = f"The body is not JSON: {str(error).removeprefix('JSON is malformed: ')}."
    return InvalidRequest(why, section)


# -- msgspec's errors, in terms of JSON ---------------------------------------------------

_WORDS = {
    "str": "a string", "int": "a number", "float": "a number", "bool": "true or false",
    "object": "an object", "array": "an array", "null": "null",
}  # fmt: skip
_MISSING = re.compile(r"Object missing required field `(.+?)`")
_TYPE = re.compile(r"Expected `(.+?)`, got `(.+?)`")
_LENGTH = re.compile(r"Expected `(str|array)` of length (<=|>=) (\d+)")
_BOUND = re.compile(r"Expected `(?:int|float)` (<=|>=) (\S+)")
_PATTERN = re.compile(r"Expected `str` matching regex")


def _explain(found: str) -> str:
    what, _, path = found.partition(" - at `$")
    name = path.strip("`").lstrip(".")
    field = f"The field {name}" if name else "The body"
    if missing := _MISSING.match(what):
        return f"The field {missing[1]} is missing."
    if wrong := _TYPE.match(what):
        expected = " or ".join(_WORDS.get(word, word) for word in wrong[1].split(" | "))
        return f"{field} is {_WORDS.get(wrong[2], wrong[2])}; it must be {expected}."
    if length := _LENGTH.match(what):
        most = "at most" if length[2] == "<=" else "at least"
        thing = "character" if length[1] == "str" else "item"
        return f"{field} must have {most} {length[3]} {thing}{'' if length[3] == '1' else 's'}."
    if bound := _BOUND.match(what):
        return f"{field} must be {'at most' if bound[1] == '<=' else 'at least'} {bound[2]}."
    if _PATTERN.match(what):
        return f"{field} has the wrong form."
    return f"{field} cannot be read: {what[:1].lower()}{what[1:]}."


# -- duplicate fields ----------------------------------------------------------------------

TOKENS_MAX = 10_000  # inspected one by one, some 4 ms; fifty addresses have about a hundred
ESCAPES_MAX = 50_000  # the search inspects each, some 2 ms

# A whole string, possibly a name, or a bracket. Possessive quantifiers: a long string costs
# no memory, and text between two tokens is skipped in one step. A search that restarted
# after each byte would take quadratic time.
_TOKEN = re.compile(
    rb'[^"\[\]{}]*+(?:("[^"\\]*+(?:\\.[^"\\]*+)*+")(\s*+:)?|([\[\]{}])|\Z)', re.DOTALL
)


def _field_twice(octets: bytes, names: tuple[str, ...]) -> str | None:
    """Return the first of these names that the outermost object has twice. The body is JSON.

    Counting nearly always suffices: a name that occurs once, in a body without escapes,
    is not a duplicate. Otherwise the tokens are inspected one by one. Raises
    _TooManyParts for more tokens than a request has.
    """
    if not _may_be_twice(octets, names):
        return None
    if octets.count(b"\\") > ESCAPES_MAX:
        raise _TooManyParts
    seen: Counter[str] = Counter()
    depth = 0
    for count, token in enumerate(_TOKEN.finditer(octets)):
        if count >= TOKENS_MAX:
            raise _TooManyParts
        match token[3]:
            case b"{" | b"[":
                depth += 1
            case b"}" | b"]":
                depth -= 1
            case _ if depth == 1 and token[2]:
                name = msgspec.json.decode(token[1], type=str)
                if name in names:
                    seen[name] += 1
                if seen[name] > 1:
                    return name
    return None


def _may_be_twice(octets: bytes, names: tuple[str, ...]) -> bool:
    """A letter of a name can be written as itself or as \\uXXXX, and in no other way."""
    if octets.count(b":") < 2:
        return False
    return b"\\u" in octets or any(octets.count(b'"%b"' % name.encode()) > 1 for name in names)


class _TooManyParts(Exception):
    """The body has more parts than are inspected."""
