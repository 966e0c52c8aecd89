"""The client's half of SMTP: what may be said when, and what a server offers."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailprobe.engine.smtp import wire
from mailprobe.engine.smtp.wire import (
    CONNECT,
    NO_OFFER,
    NOOP,
    QUIT,
    RSET,
    STARTTLS,
    TALK,
    ClosedUnasked,
    Command,
    Conversation,
    LocalProtocolError,
    Offer,
    RemoteProtocolError,
    SmtpReply,
    Stage,
    read_offer,
)
from tests.engine.smtp.test_wire_replies import line_texts, wild_pieces

EHLO = wire.ehlo("probe.example.org")
HELO = wire.helo("probe.example.org")
MAIL = wire.mail("")
ANN = wire.rcpt("ann@shop.test")
BOB = wire.rcpt("bob@shop.test")
COMMANDS = {
    "CONNECT": CONNECT,
    "EHLO": EHLO,
    "HELO": HELO,
    "MAIL": MAIL,
    "RCPT": ANN,
    "RSET": RSET,
    "NOOP": NOOP,
    "QUIT": QUIT,
    "DATA": Command("DATA", "DATA"),
    "VRFY": Command("VRFY", "VRFY ann"),
    "AUTH": Command("AUTH", "AUTH PLAIN"),
    "STARTTLS": STARTTLS,
}
PIPELINING = b"250-mx.shop.test\r\n250 PIPELINING\r\n"
WAYS: dict[Stage, list[tuple[Command | None, bytes]]] = {  # how a conversation comes to a stage
    Stage.BANNER: [],
    Stage.HELLO: [(None, b"220 hello\r\n")],
    Stage.READY: [(None, b"220 hello\r\n"), (EHLO, b"250 hello\r\n")],
    Stage.MAIL: [(None, b"220 hello\r\n"), (EHLO, b"250 hello\r\n"), (MAIL, b"250 Ok\r\n")],
    Stage.HANDSHAKE: [
        (None, b"220 hello\r\n"),
        (EHLO, b"250-hello\r\n250-PIPELINING\r\n250 STARTTLS\r\n"),
        (STARTTLS, b"220 2.0.0 Ready to start TLS\r\n"),
    ],
    Stage.CLOSED: [(None, b"220 hello\r\n"), (QUIT, b"221 Bye\r\n")],
}


def walk(conversation: Conversation, *steps: tuple[Command | None, bytes]) -> Conversation:
    """Say each command, where there is one, and hear its reply."""
    for command, reply in steps:
        if command is not None:
            conversation.send(command)
        conversation.receive(reply)
        assert conversation.next_exchange() is not None
    return conversation


def at_stage(stage: Stage) -> Conversation:
    """A quiet conversation that has come so far; in BANNER the greeting was a refusal."""
    conversation = Conversation()
    if stage is Stage.BANNER:
        return walk(conversation, (None, b"554 No SMTP service here\r\n"))
    walk(conversation, *WAYS[stage])
    assert conversation.state.stage is stage
    return conversation


def pipelining(*steps: tuple[Command | None, bytes]) -> Conversation:
    """A conversation with a host that offers PIPELINING."""
    return walk(Conversation(), (None, b"220 hello\r\n"), (EHLO, PIPELINING), *steps)


# -- which command may follow which ----------------------------------------------------------


@pytest.mark.parametrize(("stage", "verb"), list(product(Stage, COMMANDS)))
def test_the_talk_table_is_kept(stage, verb):
    """Every command in every stage: what the table has is said, all else is our mistake."""
    conversation = at_stage(stage)
    command = COMMANDS[verb]
    if verb not in TALK[stage]:
        with pytest.raises(LocalProtocolError):
            conversation.send(command)
        return
    conversation.outgoing.clear()
    conversation.send(command)
    assert conversation.outgoing == [f"{command.line}\r\n".encode()]
    conversation.receive(b"250 Ok\r\n")
    turn = conversation.next_exchange()
    assert turn is not None
    assert turn.command is command
    assert conversation.state.stage is TALK[stage][verb]


@pytest.mark.parametrize(
    ("stage", "verb"), [(stage, verb) for stage in Stage for verb in TALK[stage]]
)
@pytest.mark.parametrize("code", [354, 450, 500, 550])
def test_a_refusal_leaves_the_stage_as_it_was(stage, verb, code):
    conversation = at_stage(stage)
    conversation.send(COMMANDS[verb])
    conversation.receive(f"{code} No\r\n".encode())
    assert conversation.next_exchange() is not None
    assert conversation.state.stage is stage


@pytest.mark.parametrize("stage", [Stage.HELLO, Stage.READY, Stage.MAIL])
def test_421_closes_the_conversation_after_any_command(stage):
    conversation = at_stage(stage)
    conversation.send(*(COMMANDS[verb] for verb in list(TALK[stage])[:1]))
    conversation.receive(b"421 4.3.2 Shutting down\r\n")
    assert conversation.next_exchange() is not None
    assert conversation.state.stage is Stage.CLOSED
    with pytest.raises(LocalProtocolError):
        conversation.send(QUIT)


def test_nothing_may_be_said_before_the_banner():
    for command in COMMANDS.values():
        with pytest.raises(LocalProtocolError):
            Conversation().send(command)


def test_helo_offers_nothing():
    conversation = walk(Conversation(), (None, b"220 hello\r\n"), (HELO, PIPELINING))
    assert conversation.state.offer == NO_OFFER


def test_a_second_ehlo_replaces_the_offer():
    conversation = pipelining((EHLO, b"250-mx\r\n250 SMTPUTF8\r\n"))
    assert conversation.state.offer == Offer(smtputf8=True)


# -- STARTTLS --------------------------------------------------------------------------------


def test_tls_begins_the_conversation_anew():
    """RFC 3207: what was offered in plain text is forgotten, and EHLO comes first again."""
    conversation = at_stage(Stage.HANDSHAKE)
    assert conversation.state.offer.pipelining
    conversation.secured()
    assert (conversation.state.stage, conversation.state.offer) == (Stage.HELLO, NO_OFFER)
    assert conversation.state.secure
    with pytest.raises(LocalProtocolError):
        conversation.send(MAIL)
    walk(conversation, (EHLO, b"250-mx\r\n250 SMTPUTF8\r\n"))
    assert (conversation.state.stage, conversation.state.offer) == (
        Stage.READY,
        Offer(smtputf8=True),
    )


@pytest.mark.parametrize("octets", [b"250 Ok\r\n", b"2", b"\r\n", b"\x16\x03\x03"])
def test_plain_text_behind_the_reply_to_starttls_is_their_mistake(octets):
    """It would be taken for what was said within TLS: command injection."""
    conversation = at_stage(Stage.HANDSHAKE)
    conversation.receive(octets)
    with pytest.raises(RemoteProtocolError):
        conversation.secured()


def test_plain_text_that_came_with_the_reply_to_starttls_is_their_mistake():
    conversation = at_stage(Stage.READY)
    conversation.send(STARTTLS)
    conversation.receive(b"220 Ready\r\n250 Ok\r\n")
    assert conversation.next_exchange() is not None
    with pytest.raises(RemoteProtocolError):
        conversation.secured()


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage is not Stage.HANDSHAKE])
def test_tls_where_the_server_did_not_agree_is_our_mistake(stage):
    with pytest.raises(LocalProtocolError):
        at_stage(stage).secured()


def test_tls_is_not_offered_within_tls():
    conversation = at_stage(Stage.HANDSHAKE)
    conversation.secured()
    walk(conversation, (EHLO, b"250-mx\r\n250-STARTTLS\r\n250 PIPELINING\r\n"))
    assert conversation.state.offer == Offer(pipelining=True)


# -- PIPELINING ------------------------------------------------------------------------------


def test_a_group_is_one_write_and_is_answered_in_its_order():
    conversation = pipelining()
    conversation.outgoing.clear()
    conversation.send(MAIL, ANN, BOB)
    [octets] = conversation.outgoing
    assert octets == b"MAIL FROM:<>\r\nRCPT TO:<ann@shop.test>\r\nRCPT TO:<bob@shop.test>\r\n"
    conversation.receive(b"250 Ok\r\n550 5.1.1 No ann\r\n250 Bob\r\n")
    turns = [conversation.next_exchange() for _ in range(3)]
    assert [(turn.command, turn.reply.code) for turn in turns if turn] == [
        (MAIL, 250),
        (ANN, 550),
        (BOB, 250),
    ]
    assert conversation.usable


PAIRS = {  # a command, and those that may stand behind it before it is answered
    "MAIL": {"RCPT", "RSET", "NOOP", "QUIT"},
    "RCPT": {"RCPT", "RSET", "NOOP", "QUIT"},
    "RSET": {"MAIL", "RSET", "NOOP", "QUIT"},
    "EHLO": set(),
    "STARTTLS": set(),
    "QUIT": set(),
}


@pytest.mark.parametrize(("before", "after"), list(product(PAIRS, COMMANDS)))
def test_which_command_may_follow_which_in_a_group(before, after):
    """RFC 2920: EHLO, NOOP and QUIT are always the last of their group."""
    conversation = pipelining() if before != "RCPT" else pipelining((MAIL, b"250 Ok\r\n"))
    conversation.send(COMMANDS[before])
    if after in PAIRS[before]:
        conversation.send(COMMANDS[after])
        assert len(conversation.unanswered) == 2
    else:
        with pytest.raises(LocalProtocolError):
            conversation.send(COMMANDS[after])


def test_without_pipelining_every_command_waits_for_the_reply_before():
    conversation = at_stage(Stage.READY)
    with pytest.raises(LocalProtocolError):
        conversation.send(MAIL, ANN)
    conversation = at_stage(Stage.MAIL)
    conversation.send(ANN)
    with pytest.raises(LocalProtocolError):
        conversation.send(BOB)


def test_recipients_answered_after_their_mail_was_refused_leave_no_transaction():
    conversation = pipelining()
    conversation.send(MAIL, ANN)
    conversation.receive(b"550 5.7.1 Go away\r\n503 5.5.1 Need MAIL\r\n")
    assert conversation.next_exchange()
    assert conversation.next_exchange()
    assert conversation.state.stage is Stage.READY
    with pytest.raises(LocalProtocolError):
        conversation.send(ANN)


def test_a_recipient_accepted_after_its_mail_was_refused_opens_no_transaction():
    conversation = pipelining()
    conversation.send(MAIL, ANN)
    conversation.receive(b"451 4.3.0 Later\r\n250 Ok\r\n")
    assert conversation.next_exchange()
    assert conversation.next_exchange()
    assert conversation.state.stage is Stage.READY


def test_a_group_that_may_not_be_said_leaves_the_conversation_as_it_was():
    conversation = pipelining()
    with pytest.raises(LocalProtocolError):
        conversation.send(wire.mail(""), wire.rcpt("ann\r\n@shop.test"))
    assert conversation.usable


# -- what is never written -------------------------------------------------------------------


@pytest.mark.parametrize(
    "mailbox",
    [
        "ann\r\nDATA@shop.test",
        "ann\n@shop.test",
        "ann\r@shop.test",
        "ann\0@shop.test",
        "ann\x7f@shop.test",
        "ann\t@shop.test",
        "ann\x85@shop.test",
        "ann\u2028@shop.test",
        "ann\u202e@shop.test",
        "ann\ufeff@shop.test",
    ],
)
@pytest.mark.parametrize("make", [wire.rcpt, wire.mail, wire.ehlo, wire.helo])
def test_a_control_character_is_never_written(make, mailbox):
    command = make(mailbox)
    stage = {"RCPT": Stage.MAIL, "MAIL": Stage.READY}.get(command.verb, Stage.HELLO)
    with pytest.raises(LocalProtocolError):
        at_stage(stage).send(command)


@given(st.text(max_size=600))
def test_any_recipient_is_written_as_at_most_one_line(mailbox):
    conversation = at_stage(Stage.MAIL)
    try:
        conversation.send(wire.rcpt(mailbox))
    except (LocalProtocolError, UnicodeEncodeError):
        return
    octets = conversation.outgoing[-1]
    assert octets.endswith(b">\r\n")
    assert len(octets) <= wire.COMMAND_OCTETS_MAX + 2
    assert not any(octet < 32 or octet == 127 for octet in octets[:-2])


def test_the_longest_address_fits_a_line_and_a_longer_line_is_our_mistake():
    longest = "RCPT TO:<" + "a" * (wire.COMMAND_OCTETS_MAX - 10) + ">"
    at_stage(Stage.MAIL).send(Command("RCPT", longest))
    with pytest.raises(LocalProtocolError):
        at_stage(Stage.MAIL).send(Command("RCPT", longest + "a"))
    with pytest.raises(LocalProtocolError):  # octets are counted, not characters
        at_stage(Stage.MAIL).send(Command("RCPT", longest[:-2] + "ü>"))


def test_smtputf8_is_declared_with_mail():
    assert wire.mail("me@example.org", smtputf8=True).line == "MAIL FROM:<me@example.org> SMTPUTF8"


@given(wild_pieces)
def test_any_octets_leave_a_conversation_sound(pieces):
    """One command unanswered: at most one reply is paired, all else is their mistake."""
    conversation = at_stage(Stage.MAIL)
    conversation.send(ANN)
    turns = []
    try:
        for piece in pieces:
            conversation.receive(piece)
            while (turn := conversation.next_exchange()) is not None:
                turns.append(turn)
    except RemoteProtocolError:
        pass
    assert [turn.command for turn in turns] in ([], [ANN])


# -- LIMITS and the other offers -------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "offer"),
    [
        ((), Offer()),
        (("PIPELINING",), Offer(pipelining=True)),
        (("pipelining", "SmtpUtf8"), Offer(pipelining=True, smtputf8=True)),
        ((" PIPELINING ",), Offer(pipelining=True)),
        (("PIPELINING yes",), Offer(pipelining=True)),
        (("XPIPELINING", "PIPELINING2", "NOPIPELINING"), Offer()),
        (("LIMITS RCPTMAX=20",), Offer(recipients_max=20)),
        (("limits rcptmax=20",), Offer(recipients_max=20)),
        (
            ("LIMITS RCPTMAX=20 MAILMAX=5 RCPTDOMAINMAX=1",),
            Offer(recipients_max=20, transactions_max=5, domains_max=1),
        ),
        (("LIMITS   RCPTMAX=20    MAILMAX=5 ",), Offer(recipients_max=20, transactions_max=5)),
        (("LIMITS",), Offer()),
        (("LIMITS RCPTMAX",), Offer()),
        (("LIMITS RCPTMAX=",), Offer()),
        (("LIMITS RCPTMAX=0",), Offer()),
        (("LIMITS RCPTMAX=000",), Offer()),
        (("LIMITS RCPTMAX=-1",), Offer()),
        (("LIMITS RCPTMAX=+5",), Offer()),
        (("LIMITS RCPTMAX=5.0",), Offer()),
        (("LIMITS RCPTMAX=many",), Offer()),
        (("LIMITS RCPTMAX=²",), Offer()),
        (("LIMITS RCPTMAX=٥",), Offer()),
        (("LIMITS RCPTMAX==5",), Offer()),
        (("LIMITS RCPTMAX=5=5",), Offer()),
        (("LIMITS =5",), Offer()),
        (("LIMITS RCPTMAX= 5",), Offer()),
        (("LIMITS nonsense RCPTMAX=7 =",), Offer(recipients_max=7)),
        (("LIMITS RCPTMAX=x MAILMAX=3",), Offer(transactions_max=3)),
        (("LIMITS OTHER=3",), Offer()),
        (("SIZE 100", "LIMITS RCPTMAX=2", "PIPELINING"), Offer(True, recipients_max=2)),
        (("STARTTLS", "PIPELINING"), Offer(pipelining=True, starttls=True)),
        (("STARTTLS REQUIRED",), Offer(starttls=True)),
    ],
)
def test_the_extensions_of_an_ehlo_reply_are_read(lines, offer):
    assert read_offer(SmtpReply(250, ("mx.shop.test", *lines))) == offer


def test_the_first_line_of_an_ehlo_answer_is_a_name_not_an_offer():
    assert read_offer(SmtpReply(250, ("PIPELINING",))) == NO_OFFER


def test_a_limit_of_any_length_is_a_number():
    offer = read_offer(SmtpReply(250, ("mx", f"LIMITS RCPTMAX={'9' * 5_000}")))
    assert offer.recipients_max is not None
    assert offer.recipients_max > 1_000_000


@given(st.lists(line_texts, max_size=8))
def test_any_ehlo_answer_can_be_read(lines):
    offer = read_offer(SmtpReply(250, ("mx", *(f"LIMITS {line}" for line in lines))))
    for limit in (offer.recipients_max, offer.transactions_max, offer.domains_max):
        assert limit is None or limit > 0


# -- out of turn -----------------------------------------------------------------------------


def test_an_unsolicited_reply_is_a_remote_protocol_error():
    conversation = at_stage(Stage.READY)
    conversation.receive(b"250 Ok\r\n")
    with pytest.raises(RemoteProtocolError):
        conversation.next_exchange()


def test_an_unasked_421_closes_the_conversation():
    """The server may say it at any time (RFC 5321 3.8): that is its end, and no mistake."""
    conversation = at_stage(Stage.READY)
    conversation.receive(b"421 4.3.2 Shutting down\r\n")
    with pytest.raises(ClosedUnasked, match="421 Shutting down"):
        conversation.next_exchange()
    assert not conversation.usable


@pytest.mark.parametrize("behind", [b"550 5.1.1 <ann@shop.test>: Unknown\r\n", b"550 5", b""])
def test_a_reply_behind_421_may_be_read_as_one_to_the_same_command(behind):
    conversation = at_stage(Stage.MAIL)
    conversation.send(ANN)
    conversation.receive(b"421 4.7.0 Too many errors\r\n" + behind)
    goodbye = conversation.next_exchange()
    assert goodbye is not None
    own = conversation.reply_behind(goodbye)
    if behind.endswith(b"\n"):
        assert own is not None
        assert (own.command, own.reply.code) == (ANN, 550)
    else:
        assert own is None
    assert not conversation.unanswered
    assert not conversation.usable


def greeted_with(octets: bytes) -> Conversation:
    conversation = Conversation()
    conversation.receive(octets)
    turn = conversation.next_exchange()
    assert turn is not None
    assert turn.reply.teaser == ("220-mx.shop.test ESMTP",)
    return conversation


def test_a_greeting_is_its_last_line_whatever_its_teaser():
    teaser = b"220-mx.shop.test ESMTP\r\n"
    assert greeted_with(teaser + b"521 5.7.1 Blocked\r\n").state.stage is Stage.BANNER
    assert greeted_with(teaser + b"450 4.3.2 Later\r\n").state.stage is Stage.BANNER
    assert greeted_with(teaser + b"421 4.3.2 Busy\r\n").state.stage is Stage.CLOSED


@pytest.mark.parametrize("stage", [Stage.READY, Stage.MAIL])
def test_only_a_greeting_has_a_teaser(stage):
    conversation = at_stage(stage)
    conversation.send(ANN if stage is Stage.MAIL else RSET)
    conversation.receive(b"220-mx\r\n550 5.1.1 <ann@shop.test>: Unknown\r\n")
    with pytest.raises(RemoteProtocolError):
        conversation.next_exchange()
    assert not conversation.usable


def test_a_second_reply_is_not_taken_for_the_next_commands():
    """What is left over must be seen before anything else is asked."""
    conversation = at_stage(Stage.MAIL)
    conversation.send(ANN)
    conversation.receive(b"550 5.1.1 No ann\r\n250 Ok\r\n")
    assert conversation.next_exchange()
    assert conversation.unread
    assert not conversation.usable
    with pytest.raises(RemoteProtocolError):
        conversation.send(BOB)


@pytest.mark.parametrize("octets", [b"2", b"250", b"250-x\r\n", b"250 Ok\r\n", b"\n"])
def test_even_a_part_of_a_line_is_unread(octets):
    conversation = at_stage(Stage.READY)
    assert conversation.usable
    conversation.receive(octets)
    assert conversation.unread
    assert not conversation.usable


def test_a_conversation_is_usable_when_all_is_answered_and_all_is_read():
    conversation = Conversation()
    assert not conversation.usable  # the banner is awaited
    conversation.receive(b"220-hello\r\n220 ")
    assert conversation.next_exchange() is None
    assert not conversation.usable
    conversation.receive(b"there\r\n")
    assert conversation.next_exchange()
    assert conversation.usable
    conversation.send(EHLO)
    assert not conversation.usable
    assert not conversation.unread
