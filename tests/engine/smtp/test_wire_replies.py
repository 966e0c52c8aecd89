"""How replies are framed: lines, bounds, and what is no reply."""

from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mailprobe.engine.smtp.wire import (
    REPLY_LINES_MAX,
    REPLY_OCTETS_MAX,
    RemoteProtocolError,
    ReplyReader,
    SmtpReply,
)

SURROGATES: tuple[Literal["Cs"]] = ("Cs",)


def read_all(*pieces: bytes) -> list[SmtpReply]:
    """The replies of these octets, fed piece by piece."""
    reader, replies = ReplyReader(), []
    for piece in pieces:
        reader.feed(piece)
        while (reply := reader.next_reply()) is not None:
            replies.append(reply)
    return replies


# -- framing ---------------------------------------------------------------------------------

line_texts = st.text(
    st.characters(exclude_characters="\r\n", exclude_categories=SURROGATES), max_size=60
)
replies = st.builds(
    SmtpReply,
    st.integers(200, 599),
    st.lists(line_texts, min_size=1, max_size=8).map(tuple),
)


def encode(reply: SmtpReply, end: bytes = b"\r\n") -> bytes:
    last = len(reply.lines) - 1
    return b"".join(
        f"{reply.code}{'-' if place < last else ' '}{line}".encode() + end
        for place, line in enumerate(reply.lines)
    )


@given(st.lists(replies, max_size=6), st.lists(st.integers(0, 3000)), st.booleans())
def test_replies_cut_anywhere_are_the_same_replies(said, cuts, bare):
    """However the octets arrive, whichever way the lines end."""
    octets = b"".join(encode(reply, b"\n" if bare else b"\r\n") for reply in said)
    places = sorted({0, len(octets), *(min(cut, len(octets)) for cut in cuts)})
    pieces = [octets[start:end] for start, end in pairwise(places)]
    assert read_all(*pieces) == said


@given(st.lists(replies, min_size=1, max_size=4))
def test_replies_octet_by_octet_are_the_same_replies(said):
    octets = b"".join(map(encode, said))
    assert read_all(*(octets[place : place + 1] for place in range(len(octets)))) == said


wild_pieces = st.lists(
    st.one_of(
        st.binary(max_size=400),
        st.sampled_from(
            [b"250 ", b"250-", b"\r\n", b"\n", b"\r", b"2", b"25", b"250", b"-", b"\0"]
        ),
        st.binary(min_size=1, max_size=3).map(lambda octets: octets * 6_000),
        st.just(b"250-x\r\n").map(lambda octets: octets * 60),
    ),
    max_size=12,
)


@given(wild_pieces)
@example([b"\xb2\xb3\xb9 superscripts\r\n"])
@example(["٢٥٠ arabic digits\r\n".encode()])
@example([b"+25 x\r\n"])
@example([b" 250 x\r\n"])
def test_any_octets_are_replies_or_their_mistake(pieces):
    """Never another exception, never more than one reply may have."""
    reader = ReplyReader()
    for piece in pieces:
        reader.feed(piece)
        try:
            while (reply := reader.next_reply()) is not None:
                assert len(reply.lines) <= REPLY_LINES_MAX
                assert sum(len(line) for line in reply.lines) <= REPLY_OCTETS_MAX
                assert isinstance(reply.text, str)
                assert reply.enhanced is None or reply.enhanced[0] in "245"
        except RemoteProtocolError:
            return


@pytest.mark.parametrize(
    ("octets", "reply"),
    [
        (b"250 Ok\r\n", SmtpReply(250, ("Ok",))),
        (b"250 Ok\n", SmtpReply(250, ("Ok",))),
        (b"250\r\n", SmtpReply(250, ("",))),
        (b"250 \r\n", SmtpReply(250, ("",))),
        (b"250\n", SmtpReply(250, ("",))),
        (b"250-One\r\n250 Two\r\n", SmtpReply(250, ("One", "Two"))),
        (b"250-One\n250-\n250\n", SmtpReply(250, ("One", "", ""))),
        (b"250-One\r\n250 Two\n", SmtpReply(250, ("One", "Two"))),
        (b"550 caf\xe9\r\n", SmtpReply(550, ("café",))),
        ("550 café\r\n".encode(), SmtpReply(550, ("café",))),
        (b"550-caf\xe9\r\n550 \xc3\xa9\r\n", SmtpReply(550, ("café", "é"))),
        (b"250  two spaces\r\n", SmtpReply(250, (" two spaces",))),
        (b"250 Ok\r\r\n", SmtpReply(250, ("Ok",))),
        (b"250 nul\0 inside\r\n", SmtpReply(250, ("nul\0 inside",))),
        (b"220-mx\r\n220 mx ESMTP\r\n", SmtpReply(220, ("mx", "mx ESMTP"))),
        (b"220-mx\r\n521 5.7.1 No\r\n", SmtpReply(521, ("5.7.1 No",), ("220-mx",))),
        (b"220-a\r\n220-b\r\n550-c\r\n550 d\r\n", SmtpReply(550, ("c", "d"), ("220-a", "220-b"))),
        (b"220-mx\r\n450 4.3.2 Later\n", SmtpReply(450, ("4.3.2 Later",), ("220-mx",))),
        (b"220-mx\r\n421 4.3.2 Busy\n", SmtpReply(421, ("4.3.2 Busy",), ("220-mx",))),
        (b"\r\n220 mx ESMTP\r\n\r\n\r\n", SmtpReply(220, ("mx ESMTP",))),
        (b"220***0*2******\r\n", SmtpReply(220, ("**0*2******",))),
    ],
)
def test_a_reply_as_it_comes(octets, reply):
    assert read_all(octets) == [reply]


@pytest.mark.parametrize(
    "octets",
    [
        b"\n",
        b"hello\r\n",
        b"HTTP/1.1 400 Bad Request\r\n",
        b"\x16\x03\x01\x02\x00\x01\r\n",
        b"\xff\xfd\x18\r\n",
        b"199 Too low\r\n",
        b"100-x\r\n",
        b"600 Too high\r\n",
        b"999 x\r\n",
        b"2500 x\r\n",
        b"250x\r\n",
        b"250\tTab\r\n",
        b"250_x\r\n",
        b"-250 x\r\n",
        b" 250 x\r\n",
        b"25O letter\r\n",
        b"25 Ok\r\n",
        b"25\r\n",
        b"2\r\n",
        b"5\n",
        b"250-One\r\n251 Two\r\n",
        b"250-One\r\n250-Two\r\n550 Three\r\n",
        b"220-One\r\n550-Two\r\n220 Three\r\n",
        b"550-One\r\n220 Two\r\n",
        b"250-One\r\nTwo\r\n",
        b"250-One\r\n\r\n",
    ],
)
def test_an_invalid_reply_is_a_remote_protocol_error(octets):
    with pytest.raises(RemoteProtocolError):
        read_all(octets)


def test_an_empty_line_behind_a_repeated_reply_leaves_nothing_unread():
    reader = ReplyReader()
    for _ in range(3):
        assert reader.next_reply(b"550 no such user\r\n\r\n") == SmtpReply(550, ("no such user",))
        assert reader.empty


# -- bounds ----------------------------------------------------------------------------------


def test_empty_lines_without_end_are_an_error():
    reader = ReplyReader()
    with pytest.raises(RemoteProtocolError, match="empty lines"):
        reader.next_reply(b"\r\n" * 1000)


@pytest.mark.parametrize(
    "text",
    [
        "用户不存在",
        "5.1.1 <ann@shop.test>: 无此用户",
        "收件人地址不存在，请检查（#5.1.1）",
        "User unknown 邮箱不存在",
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "gbk"])
def test_chinese_is_read_in_utf_8_and_in_gbk(text, encoding):
    assert read_all(f"550 {text}\r\n".encode(encoding)) == [SmtpReply(550, (text,))]


@pytest.mark.parametrize(
    "text",
    ["Empfänger unbekannt", "Destinatário não existe: é inválido", "größere Übermaße", "Ààéé"],
)
def test_latin_1_is_not_taken_for_chinese(text):
    assert read_all(b"550 " + text.encode("latin-1") + b"\r\n") == [SmtpReply(550, (text,))]


def test_a_teaser_counts_to_the_hundred_lines():
    assert len(read_all(b"220-x\r\n" * 99 + b"550 x\r\n")[0].teaser) == 99
    with pytest.raises(RemoteProtocolError):
        read_all(b"220-x\r\n" * 60 + b"550-x\r\n" * 41)


def test_a_teaser_is_written_as_it_was_heard():
    [reply] = read_all(b"220-mx ESMTP\r\n521-5.7.1 No\r\n521 5.7.1 Go\r\n")
    assert str(reply) == "220-mx ESMTP\n521-5.7.1 No\n521 5.7.1 Go"
    assert reply.text == "No Go"


def test_a_reply_has_a_hundred_lines_at_most():
    [reply] = read_all(b"250-x\r\n" * 99 + b"250 x\r\n")
    assert len(reply.lines) == REPLY_LINES_MAX == 100
    with pytest.raises(RemoteProtocolError):
        read_all(b"250-x\r\n" * 100 + b"250 x\r\n")
    with pytest.raises(RemoteProtocolError):  # before its end is known
        read_all(b"250-x\r\n" * 101)


def line_of(octets: int, mark: bytes = b" ", end: bytes = b"\r\n") -> bytes:
    """One reply line of exactly so many octets, its end included."""
    return b"250" + mark + b"x" * (octets - 4 - len(end)) + end


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
def test_a_reply_has_16_kib_at_most(end):
    assert REPLY_OCTETS_MAX == 16 * 1024
    whole = line_of(8192, b"-", end) + line_of(8192, b" ", end)
    assert len(read_all(whole)) == 1
    assert len(read_all(line_of(REPLY_OCTETS_MAX, end=end))) == 1
    for octets in (
        line_of(8192, b"-", end) + line_of(8193, b" ", end),
        line_of(REPLY_OCTETS_MAX + 1, end=end),
    ):
        with pytest.raises(RemoteProtocolError):
            read_all(octets)
        with pytest.raises(RemoteProtocolError):
            read_all(*(octets[place : place + 1000] for place in range(0, len(octets), 1000)))


def test_a_line_without_an_end_is_given_up_at_16_kib():
    assert read_all(b"x" * REPLY_OCTETS_MAX) == []
    with pytest.raises(RemoteProtocolError):
        read_all(b"x" * (REPLY_OCTETS_MAX + 1))


def test_the_bound_is_of_one_reply_not_of_a_session():
    assert len(read_all(*[line_of(REPLY_OCTETS_MAX)] * 5)) == 5
    assert len(read_all(line_of(10_000) * 5)) == 5


# -- what a reply says -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "enhanced", "text"),
    [
        (("5.1.1 User unknown",), "5.1.1", "User unknown"),
        (("User unknown",), None, "User unknown"),
        (("",), None, ""),
        (("5.1.1",), "5.1.1", ""),
        ((" 5.1.1 User unknown",), "5.1.1", "User unknown"),
        (("#5.1.1 User unknown",), "5.1.1", "User unknown"),
        (("(5.1.1) User unknown",), "5.1.1", "User unknown"),
        (("[5.1.1] User unknown",), "5.1.1", "User unknown"),
        (("5.1.10 Not found",), "5.1.10", "Not found"),
        (("5.7.606 Banned",), "5.7.606", "Banned"),
        (("2.1.5 Ok",), "2.1.5", "Ok"),
        (("3.1.1 no class",), None, "3.1.1 no class"),
        (("5.1.1.1 an address",), None, "5.1.1.1 an address"),
        (("5.1.1000 too long",), None, "5.1.1000 too long"),
        (("192.0.2.25 blocked",), None, "192.0.2.25 blocked"),
        (("User 5.1.1 unknown",), None, "User 5.1.1 unknown"),
        (("Words first", "5.1.1 then the code"), "5.1.1", "Words first then the code"),
        (("5.1.1 One", "5.1.1 Two"), "5.1.1", "One Two"),
        (("5.1.1 One", "5.7.1 Two"), "5.1.1", "One Two"),
    ],
)
def test_the_enhanced_code_leads_a_line(lines, enhanced, text):
    reply = SmtpReply(550, lines)
    assert reply.enhanced == enhanced
    assert reply.text == text


@pytest.mark.parametrize(
    ("code", "positive"), [(199, False), (200, True), (299, True), (300, False), (550, False)]
)
def test_only_2xx_is_positive(code, positive):
    assert SmtpReply(code).positive is positive


def test_a_reply_is_written_as_it_was_heard():
    octets = b"550-5.1.1 One\r\n550-\r\n550 5.1.1 Two\r\n"
    [reply] = read_all(octets)
    assert str(reply) == "550-5.1.1 One\n550-\n550 5.1.1 Two"
