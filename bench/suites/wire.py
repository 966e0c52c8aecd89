"""Measures SMTP without a socket: writing commands, parsing replies, pairing both.

The octets are those of a Postfix. A new session begins after as many recipients as the
engine sends in one; the greeting is a figure of its own.
"""

from collections.abc import Callable

from mailprobe.engine.smtp import wire
from mailprobe.engine.smtp.wire import Conversation

from ..harness.figures import Figure
from ..harness.rounds import ratio, timed

BANNER = b"220 mx1.harbour-books.test ESMTP Postfix\r\n"
HELLO = (
    b"250-mx1.harbour-books.test\r\n250-PIPELINING\r\n250-SIZE 10240000\r\n250-ETRN\r\n"
    b"250-STARTTLS\r\n250-ENHANCEDSTATUSCODES\r\n250-8BITMIME\r\n250-DSN\r\n250-SMTPUTF8\r\n"
    b"250 CHUNKING\r\n"
)
MAIL_OK = b"250 2.1.0 Ok\r\n"
RCPT_OK = b"250 2.1.5 Ok\r\n"
UNKNOWN = b"550 5.1.1 <%b>: Recipient address rejected: User unknown in local recipient table\r\n"
SESSIONS = 100
RECIPIENTS = 100  # of a session
TOGETHER = 10  # recipients in one write, answered in one read
MAILBOXES = [f"clara.nowak{n}@harbour-books.test" for n in range(RECIPIENTS)]
COMMANDS = [wire.rcpt(mailbox) for mailbox in MAILBOXES]
REPLIES = [
    UNKNOWN % mailbox.encode() if place % 5 == 4 else RCPT_OK  # one in five is unknown
    for place, mailbox in enumerate(MAILBOXES)
]


def run() -> list[Figure]:
    turns = SESSIONS * RECIPIENTS
    greeting = timed(_repeat(greet))
    alone = timed(_repeat(lambda: converse(1)))
    together = timed(_repeat(lambda: converse(TOGETHER)))
    encoding = timed(_repeat(encode))
    parsing = timed(_repeat(parse))
    return [
        alone.rate("turns, one by one", turns),
        together.rate("turns, pipelined by 10", turns),
        alone.figure("a recipient, one by one", turns),
        together.figure("a recipient, pipelined by 10", turns),
        encoding.figure("a command written, by 10", turns),
        parsing.figure("a reply parsed and paired, by 10", turns),
        greeting.figure("a greeting: banner, EHLO and MAIL", SESSIONS),
        ratio("pipelined by 10 beside one by one", together, alone),
    ]


def _repeat(session: Callable[[], object]) -> Callable[[], None]:
    def sessions() -> None:
        for _ in range(SESSIONS):
            session()

    return sessions


def greet() -> Conversation:
    """Return a conversation in the middle of a transaction."""
    conversation = Conversation()
    conversation.receive(BANNER)
    conversation.next_exchange()
    for command, reply in ((wire.ehlo("probe.lab.test"), HELLO), (wire.mail(""), MAIL_OK)):
        conversation.send(command)
        conversation.receive(reply)
        conversation.next_exchange()
    return conversation


def converse(together: int) -> None:
    """Run a whole session: `together` recipients in each write, their replies in one read."""
    conversation = greet()
    for start in range(0, RECIPIENTS, together):
        named = MAILBOXES[start : start + together]
        conversation.send(*[wire.rcpt(mailbox) for mailbox in named])
        conversation.outgoing.clear()  # written
        conversation.receive(b"".join(REPLIES[start : start + together]))
        for _ in named:
            turn = conversation.next_exchange()
            assert turn is not None
    assert conversation.usable


def encode() -> None:
    conversation = greet()
    for start in range(0, RECIPIENTS, TOGETHER):
        conversation.send(*[wire.rcpt(each) for each in MAILBOXES[start : start + TOGETHER]])


def parse() -> None:
    """Parse the replies to commands that were all written before, ten in a read."""
    conversation = greet()
    conversation.unanswered.extend(COMMANDS)
    for start in range(0, RECIPIENTS, TOGETHER):
        conversation.receive(b"".join(REPLIES[start : start + TOGETHER]))
        for _ in range(TOGETHER):
            conversation.next_exchange()
