"""Answers as octets: framing by version and method, and nothing that an application may not say."""

import re
from http import HTTPStatus

import h11
import pytest

from mailprobe.api.http.encoder import ResponseEncoder

START = {"type": "http.response.start", "status": 200}
OURS = [(b"date", b"now")]


def part(octets: bytes, *, more: bool = False) -> dict[str, object]:
    return {"type": "http.response.body", "body": octets, "more_body": more}


FRAMED = {
    "a length": ({}, 200, [(b"content-length", b"2")], b"", b"ok"),
    "no length": ({}, 200, [], b"Transfer-Encoding: chunked\r\n", b"2\r\nok\r\n0\r\n\r\n"),
    "no body": ({}, 204, [], b"", b""),
    "not modified": ({}, 304, [(b"content-length", b"2")], b"", b""),
    "HEAD": ({"is_head": True}, 200, [(b"content-length", b"2")], b"", b""),
    "HEAD, no length": ({"is_head": True}, 200, [], b"Transfer-Encoding: chunked\r\n", b""),
    "HTTP/1.0": ({"is_http10": True}, 200, [], b"connection: close\r\n", b"ok"),
    "the last": (
        {"closes": True}, 200, [(b"content-length", b"2")], b"connection: close\r\n", b"ok"
    ),
    "the last, said": ({"closes": True}, 204, [(b"connection", b"close")], b"", b""),
}  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "status", "fields", "added", "body"), FRAMED.values(), ids=FRAMED
)
def test_an_answer_is_framed_as_its_request_can_read_it(request_, status, fields, added, body):
    encoder = ResponseEncoder(**request_)
    head = encoder.octets_of({**START, "status": status, "headers": fields}, OURS)
    lines = [b"%b: %b\r\n" % field for field in [*fields, *OURS]]
    said = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
    assert head == said + b"".join(lines) + added + b"\r\n"
    assert encoder.octets_of(part(b"ok" if status == 200 else b""), []) == body
    assert encoder.ended
    assert encoder.closes == (b"connection: close" in head)


def test_an_answer_without_a_body_has_no_length():
    """RFC 9110 8.6: not even one of 0."""
    fields = [(b"content-length", b"0"), (b"x", b"y")]
    head = ResponseEncoder().octets_of({**START, "status": 204, "headers": fields}, [])
    assert head == b"HTTP/1.1 204 No Content\r\nx: y\r\n\r\n"


@pytest.mark.parametrize("status", [101, 200, 429, 503, 299, 599])
def test_every_status_has_a_reason_phrase(status):
    """Some clients read no status line without one."""
    head = ResponseEncoder().octets_of({**START, "status": status, "headers": []}, [])
    assert re.match(rb"HTTP/1\.1 %d [A-Z][A-Za-z ]+\r\n" % status, head)


NO_FIELDS = {
    "another field in a value": (b"x", b"a\r\nb: c"),
    "an end in a value": (b"x", b"a\r\n\r\nb"),
    "a line feed": (b"x", b"a\nb"),
    "a NUL": (b"x", b"a\0b"),
    "a space in a name": (b"x y", b"a"),
    "no name": (b"", b"a"),
    "a name with a line": (b"x: a\r\nb", b"c"),
}


@pytest.mark.parametrize("field", NO_FIELDS.values(), ids=NO_FIELDS)
def test_a_field_that_is_none_is_never_said(field):
    answer = ResponseEncoder()
    with pytest.raises(h11.LocalProtocolError):
        answer.octets_of({**START, "headers": [field]}, [])
    head = answer.octets_of({**START, "headers": [(b"content-length", b"0")]}, [])
    assert re.fullmatch(rb"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", head)


@pytest.mark.parametrize("octets", [b"o", b"okay"])
def test_a_body_of_another_length_than_was_said_is_an_error(octets):
    answer = ResponseEncoder()
    answer.octets_of({**START, "headers": [(b"content-length", b"2")]}, [])
    with pytest.raises(h11.LocalProtocolError):
        answer.octets_of({"type": "http.response.body", "body": octets}, [])


def test_messages_out_of_turn_are_errors():
    answer = ResponseEncoder()
    body = {"type": "http.response.body", "body": b""}
    with pytest.raises(h11.LocalProtocolError):
        answer.octets_of(body, [])
    answer.octets_of({**START, "headers": []}, [])
    with pytest.raises(h11.LocalProtocolError):
        answer.octets_of({**START, "headers": []}, [])
    assert answer.octets_of(body, []) == b"0\r\n\r\n"
    with pytest.raises(h11.LocalProtocolError):
        answer.octets_of(body, [])
