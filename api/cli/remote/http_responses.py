"""Reads a service's responses: lines of results, error bodies, and the limits in headers."""

import re
from collections.abc import AsyncGenerator

import httpx
import msgspec
import trio

LINE_OCTETS_MAX = 1 << 20
ERROR_OCTETS_MAX = 1 << 16  # read of an error body
ANSWER_S = 30.0  # for the next line of a stream: a verification takes at most 5 s, plus its queue


class RefusedRequest(msgspec.Struct, frozen=True):
    """The parts of an error body that the source reads."""

    error: str = "an error"
    message: str = ""
    action: str = ""
    limit: int | None = None
    used: int | None = None


async def read_lines(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Whole lines. Text after the last line end is incomplete and ignored.

    `aiter_lines()` would also split at U+2028, which JSON may contain.
    """
    rest = b""
    async for octets in response.aiter_bytes():
        *lines, rest = (rest + octets).split(b"\n")
        for line in lines:
            yield line
        if len(rest) > LINE_OCTETS_MAX:  # no result is this long
            yield rest
            rest = b""


async def read_error_body(response: httpx.Response) -> bytes:
    """The beginning of an error body, as far as it arrives in time."""
    octets = b""
    with trio.move_on_after(ANSWER_S) as reading:
        async for piece in response.aiter_bytes():
            octets += piece
            if len(octets) > ERROR_OCTETS_MAX:
                reading.cancel()
    return octets[:ERROR_OCTETS_MAX]


def reason_of(error: BaseException) -> str:
    """Why a service cannot be reached: an error of TLS has its words in what caused it."""
    cause: BaseException | None = error
    while cause is not None:
        if words := str(cause):
            return re.sub(r"^\[Errno -?[0-9]+\] ", "", words)
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__


def error_of(octets: bytes) -> RefusedRequest:
    try:
        return msgspec.json.decode(octets, type=RefusedRequest)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return RefusedRequest()


def limit_of(response: httpx.Response) -> int | None:
    """The units per minute: `"minute";q=100;w=60` in RateLimit-Policy."""
    policy = response.headers.get("ratelimit-policy", "")
    found = re.search(r'"minute";\s*q=([0-9]{1,12})', policy)
    return max(1, int(found[1])) if found else None


def retry_after_s(response: httpx.Response) -> float | None:
    text = response.headers.get("retry-after", "")
    return float(text) if re.fullmatch("[0-9]{1,9}", text) else None
