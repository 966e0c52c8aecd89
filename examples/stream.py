"""Addresses, one a line, through a service's stream; each with its light and its status.

    BASE_URL=http://127.0.0.1:8080 KEY=sk_live_… python examples/stream.py < addresses.txt

A program to copy from. It makes one request after the other; `mailprobe clean --server`
makes several at a time and keeps what was answered. Needs httpx.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx

PATH = "/v1/email/verify/stream"
EMAILS_MAX = 50  # in a request
FAILURES_MAX = 6  # in a row: half a minute
PASSING = {408, 500, 502, 503, 504}  # the service says 503; a proxy before it the others

Result = dict[str, Any]


def main() -> None:
    emails = [line.rstrip("\r\n") for line in sys.stdin if line.strip()]
    headers = {"Authorization": f"Bearer {os.environ['KEY']}"}
    with httpx.Client(base_url=os.environ["BASE_URL"], headers=headers, timeout=30) as client:
        for result in verify(client, emails):
            print(light_of(result), result["status"], result["email"], sep="\t", flush=True)


def verify(client: httpx.Client, emails: list[str]) -> Iterator[Result]:
    """A result for each, as it comes; what a request left unanswered is asked again."""
    left, size, failures = list(emails), EMAILS_MAX, 0
    while left:
        try:
            for result in verify_all(client, left[:size]):
                left.remove(result["email"])
                failures = 0
                yield result
        except httpx.HTTPStatusError as refused:
            status, told = refused.response.status_code, error_of(refused.response)
            if told["error"] == "rate_limit_exceeded" and told["limit"] < size:
                size = told["limit"]  # a larger request would never pass
            elif told["error"] == "rate_limit_exceeded":
                time.sleep(int(refused.response.headers["Retry-After"]))
            elif status in PASSING:
                failures = pause(failures, told["message"])
            else:
                sys.exit(f"{status} {told['error']}: {told['message']} {told['action']}")
        except httpx.TransportError as error:
            failures = pause(failures, str(error))


def verify_all(client: httpx.Client, emails: list[str]) -> Iterator[Result]:
    """One request. Lines end with "\\n" alone: httpx's `iter_lines` would break at more than that."""
    with client.stream("POST", PATH, json={"emails": emails}) as response:
        if response.is_error:
            response.read()
        response.raise_for_status()
        rest = b""
        for octets in response.iter_bytes():
            *lines, rest = (rest + octets).split(b"\n")
            yield from map(json.loads, lines)


def error_of(response: httpx.Response) -> Result:
    """The body of a refusal; a proxy's is none of ours."""
    try:
        told: Result = response.json()
    except ValueError:
        return {"error": "no_answer", "message": response.reason_phrase, "action": ""}
    return told


def pause(failures: int, why: str) -> int:
    """Wait, longer each time; the failures so far."""
    if failures == FAILURES_MAX:
        sys.exit(f"given up: {why}")
    time.sleep(0.5 * 2**failures)
    return failures + 1


def light_of(result: Result) -> str:
    """Rules in their order: the first that fits decides."""
    status, confidence = result["status"], result["confidence"]
    if result["suggestion"] is not None:
        return "YELLOW_LIGHT"  # ask the person whether that was meant
    if result["disposable"] or status in ("invalid", "undeliverable"):
        return "RED_LIGHT"
    if status == "catch_all" or result["catch_all"]:
        return "YELLOW_LIGHT"
    if status == "unknown" and result["smtp_blocked"] and confidence >= 0.75:
        return "YELLOW_LIGHT"  # leans to green
    if status == "unknown" and result["mx_found"] and not result["smtp_blocked"]:
        return "YELLOW_LIGHT"  # never reject for this alone
    if result["valid"] or confidence >= 0.9:
        return "GREEN_LIGHT"
    return "YELLOW_LIGHT" if confidence >= 0.5 else "RED_LIGHT"


if __name__ == "__main__":
    main()
