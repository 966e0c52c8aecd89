"""The server's side of SMTP without a stream: a command in, a reply out.

It logs everything that a prober must not do (`HostLogSession.mistakes`), and has the
limits of real servers as measured: Postfix slows down and hangs up after refusals,
Exim after commands that are not mail, OpenSMTPD after two commands in one write.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from .host_behaviours import ClientHistory, looks_random
from .host_defences import SessionDefence
from .host_description import HostDescription
from .host_log import HostLogSession, rcpt_mailbox

LINE_OCTETS_MAX = 1_000  # a prober's longest line is far shorter
CLIENT_VERBS = frozenset({"EHLO", "HELO", "MAIL", "RCPT", "RSET", "STARTTLS", "QUIT", "NOOP"})
NONMAIL_VERBS = frozenset({"EHLO", "HELO", "RSET", "NOOP", "VRFY"})


class ScriptReply(Struct, frozen=True):
    """One reply: its lines, whether the host hangs up after it, and its extra delay.

    A greeting may have a `teaser`, a first line that is sent before the delay.
    """

    text: str
    close: bool = False
    wait_s: float = 0.0
    teaser: str = ""


class SmtpScript:
    """The replies of one session, by the host's description."""

    def __init__(self, host: HostDescription, session: HostLogSession) -> None:
        self._host = host
        self._session = session
        self._greeted = False
        self._extended = False  # EHLO, not HELO
        self._secure = False  # within TLS
        self._in_mail = False
        self._accepted = ""  # the first acceptance of the transaction
        self._smtputf8 = False
        self._recipients = 0  # in this transaction,
        self._session_recipients = 0  # and in this connection
        self._transactions = 0
        self._commands = 0  # answered: those of a write are read before
        self._nonmail = 0
        self._null_sender = False  # in this transaction
        self._received_at_s: float | None = None
        self._stale = False  # no command came for long, and no MAIL since
        self._history = ClientHistory()  # of this connection
        self._defended = (
            SessionDefence(host.defence, host.record.source(session.source))
            if host.defence is not None
            else None
        )

    def greet(self) -> ScriptReply:
        host = self._host
        if self._session.source in host.refused_sources:
            return ScriptReply(host.source_reply, close=True)
        if host.connections_max is not None and host.record.connections_now > host.connections_max:
            return ScriptReply(host.connections_reply, close=True)
        banner = ScriptReply(self._named(host.banner))
        return banner if self._defended is None else self._greet_warily(banner, self._defended)

    def _greet_warily(self, banner: ScriptReply, defended: SessionDefence) -> ScriptReply:
        """The greeting by what the host remembers of the source."""
        rules, source = defended.defence, defended.source
        if source.is_banned(self._session.opened_at_s) and not rules.bans_recipients:
            return ScriptReply(self._named(rules.ban_reply), close=True)
        if rules.connections_max is not None and source.connections_now > rules.connections_max:
            return ScriptReply(rules.connections_reply, close=True)
        if rules.greet_wait_s and not source.has_passed:
            return replace(banner, wait_s=rules.greet_wait_s, teaser=self._named(rules.teaser))
        return banner

    def _named(self, reply: str) -> str:
        return reply.replace("{name}", self._host.name)

    def secured(self) -> None:
        """TLS is in use from now on: the session starts again (RFC 3207)."""
        self._secure, self._greeted, self._extended = True, False, False

    def receive(self, line: str, now: float, *, together: bool) -> ScriptReply:
        """Answer one command; `together` when the write that brought it held another one."""
        host = self._host
        verb = line.split(" ", 1)[0].upper()
        self._check_client(verb, line, together)
        self._stale |= self._received_at_s is not None and now - self._received_at_s >= host.stale_s
        self._received_at_s = now
        if (ban := self._ban_reply(verb, now)) is not None:
            return ban
        self._commands += 1
        if host.commands_max is not None and self._commands > host.commands_max:
            return ScriptReply("421 4.7.0 Too many commands", close=True)
        if together and host.one_command_a_write:
            return ScriptReply("500 5.5.1 Invalid command: Pipelining not supported", close=True)
        if verb in NONMAIL_VERBS:
            self._nonmail += 1
            if host.nonmail_max is not None and self._nonmail > host.nonmail_max:
                return ScriptReply("554 Too many nonmail commands", close=True)
        return self._reply(verb, line, now, together=together)

    def _ban_reply(self, verb: str, now: float) -> ScriptReply | None:
        """The reply to a source that was banned while it is connected, or None."""
        if self._defended is None:
            return None
        rules, source = self._defended.defence, self._defended.source
        source.has_passed = True
        if not source.is_banned(now) or verb == "QUIT":
            return None
        if not rules.bans_recipients:
            return ScriptReply(self._named(rules.ban_reply), close=True)
        if verb == "RCPT":
            return self._refused(rules.ban_reply)
        # it hangs up behind recipients that got the reply of the ban
        return ScriptReply("", close=True) if self._in_mail else None

    def _reply(self, verb: str, line: str, now: float, *, together: bool) -> ScriptReply:
        match verb:
            case "EHLO":
                return self._ehlo(line)
            case "HELO":
                return self._helo()
            case "MAIL":
                return self._mail(line, now)
            case "RCPT":
                return self._rcpt(line, now)
            case "RSET":
                return self._rset()
            case "STARTTLS":
                return self._starttls(together=together)
            case "NOOP":
                return ScriptReply("250 2.0.0 Ok")
            case "QUIT":
                return ScriptReply("221 2.0.0 Bye", close=True)
            case _:
                return ScriptReply("502 5.5.2 Error: command not recognized")

    def _check_client(self, verb: str, line: str, together: bool) -> None:
        """Log what a prober must never do."""
        blame = self._session.blame
        if verb not in CLIENT_VERBS:
            blame(f"a command that is not a prober's: {line[:80]!r}")
        if not line.isprintable():
            blame(f"a control character: {line[:80]!r}")
        if len(line.encode()) > LINE_OCTETS_MAX:
            blame(f"a line of {len(line)} characters")
        if together and not (self._extended and self._host.offers("PIPELINING")):
            blame(f"two commands in one write without PIPELINING: {line[:80]!r}")

    def _ehlo(self, line: str) -> ScriptReply:
        host = self._host
        if len(line.split()) != 2:
            return ScriptReply("501 5.5.4 Syntax: EHLO hostname")
        self._rset()
        if host.ehlo_reply is not None:
            self._greeted = self._extended = host.ehlo_reply.startswith("2")
            return ScriptReply(host.ehlo_reply)
        self._greeted = self._extended = True
        lines = [host.name, *(x for x in host.ehlo_lines if not (self._secure and x == "STARTTLS"))]
        last = len(lines) - 1
        return ScriptReply(
            "\n".join(f"250{'-' if n < last else ' '}{x}" for n, x in enumerate(lines))
        )

    def _helo(self) -> ScriptReply:
        self._rset()
        self._greeted, self._extended = True, False
        return ScriptReply(self._host.helo_reply.replace("{name}", self._host.name))

    def _starttls(self, *, together: bool) -> ScriptReply:
        host, blame = self._host, self._session.blame
        if self._secure or not host.offers("STARTTLS"):
            blame("STARTTLS where it is not offered")
            return ScriptReply("502 5.5.1 Error: command not implemented")
        if host.tls_demanded_at is None:
            blame("STARTTLS where it is not demanded")
        if together or self._in_mail or not self._extended:
            blame("STARTTLS out of order")
            return ScriptReply("503 5.5.1 Error: STARTTLS out of order")
        return ScriptReply(host.starttls_reply)

    def _mail(self, line: str, now: float) -> ScriptReply:
        host = self._host
        if not self._greeted:
            self._session.blame("MAIL before EHLO")
            return ScriptReply("503 5.5.1 Error: send HELO/EHLO first")
        if self._in_mail:
            self._session.blame("MAIL within a transaction")
            return ScriptReply("503 5.5.1 Error: nested MAIL command")
        if not line.upper().startswith("MAIL FROM:<") or ">" not in line:
            return ScriptReply("501 5.5.4 Syntax: MAIL FROM:<address>")
        wants_utf8 = "SMTPUTF8" in line.rpartition(">")[2].upper().split()
        if wants_utf8 and not (self._extended and host.offers("SMTPUTF8")):
            self._session.blame("SMTPUTF8 where it is not offered")
            return ScriptReply("555 5.5.4 Unsupported option: SMTPUTF8")
        if host.tls_demanded_at == "MAIL" and not self._secure:
            return ScriptReply(host.tls_demand)
        self._transactions += 1
        if (refusal := self._refusal_of_mail(line)) is not None:
            return ScriptReply(refusal, close=refusal.startswith("421"))
        if host.transactions_max is not None and self._transactions > host.transactions_max:
            self._session.blame(f"more than {host.transactions_max} transactions")
            return ScriptReply("451 4.5.3 Error: too many transactions")
        if not host.mail_reply.startswith("2"):
            return ScriptReply(host.mail_reply)
        self._in_mail, self._smtputf8, self._recipients = True, wants_utf8, 0
        if self._defended is not None:
            self._defended.begin_message(now)
        return ScriptReply(host.mail_reply)

    def _refusal_of_mail(self, line: str) -> str | None:
        """The refusal of this transaction, for its sender or because of earlier ones, or None."""
        host, stale = self._host, self._stale
        self._stale = False
        self._null_sender = line[10:].startswith("<>")
        if stale and host.stale_reply is not None:
            return host.stale_reply
        if self._transactions > host.mails_accepted and host.mail_again_reply is not None:
            return host.mail_again_reply
        return None if host.judges_sender_at_rcpt else self._refusal_of_sender()

    def _refusal_of_sender(self) -> str | None:
        host = self._host
        return host.null_sender_reply if self._null_sender else host.named_sender_reply

    def _rcpt(self, line: str, now: float) -> ScriptReply:
        mailbox = rcpt_mailbox(line)
        if not self._in_mail:
            return self._refused("503 5.5.1 Error: need MAIL command")
        if mailbox is None or "@" not in mailbox:
            return self._refused("501 5.1.3 Bad recipient address syntax")
        host = self._host
        if (limited := self._beyond_limit(mailbox)) is not None:
            return limited
        if host.rate_max is not None and host.record.count_in(host.rate_s, now) > host.rate_max:
            return self._refused(host.rate_reply)
        if not host.counts_accepted_only:
            self._count_recipient()
        if host.tls_demanded_at == "RCPT" and not self._secure:
            return self._refused(host.tls_demand)
        if host.judges_sender_at_rcpt and (refusal := self._refusal_of_sender()) is not None:
            return self._refused(refusal)
        if self._defended is not None and not self._defended.admits(now):
            return ScriptReply(self._named(self._defended.defence.ban_reply), close=True)
        reply = self._reply_to(mailbox, now)
        if self._defended is not None:
            self._defended.count(now, refused=reply.startswith("5"))
        local = mailbox.lower()
        wait_s = next((s for start, s in host.slow_s.items() if local.startswith(start)), 0.0)
        if reply == host.default_unknown:
            wait_s += host.unknown_delay_s
        local_part, _, domain = mailbox.rpartition("@")
        named = f"{local_part}@{host.renames.get(domain.lower(), domain)}"
        reply = reply.replace("{rcpt}", named).replace("{local}", local_part)
        if not reply.startswith("2"):
            return self._refused(reply, wait_s)
        if host.counts_accepted_only:
            self._count_recipient()
        if host.one_mailbox:
            reply = self._accepted = self._accepted or reply
        return ScriptReply(reply, wait_s=wait_s)

    def _count_recipient(self) -> None:
        self._recipients += 1
        self._session_recipients += 1

    def _beyond_limit(self, mailbox: str) -> ScriptReply | None:
        """The refusal of one recipient too many, or None."""
        host, reply = self._host, None
        if host.recipients_max is not None and self._recipients >= host.recipients_max:
            reply = host.recipients_reply
        in_session, session_max = self._session_recipients, host.session_recipients_max
        if session_max is not None and in_session >= session_max:
            reply = host.session_recipients_reply
        if reply is None:
            return None
        reply = reply.replace("{rcpt}", mailbox)
        if not reply or reply.startswith("421"):
            return ScriptReply(reply, close=True)
        return self._refused(reply)

    def _refused(self, reply: str, wait_s: float = 0.0) -> ScriptReply:
        """Count a refusal, as Postfix does: slower after some, hung up after more."""
        host, session = self._host, self._session
        session.refusals += 1
        if host.refusals_max is not None and session.refusals > host.refusals_max:
            return ScriptReply(f"421 4.7.0 {host.name} Error: too many errors", close=True)
        free = host.refusals_free
        slow = free is not None and session.refusals > free
        return ScriptReply(reply, wait_s=wait_s + (host.refusal_delay_s if slow else 0.0))

    def _reply_to(self, mailbox: str, now: float) -> str:
        host = self._host
        local, _, domain = mailbox.rpartition("@")
        local, domain = local.casefold(), domain.lower()
        if host.domains is not None and domain not in host.domains:
            return host.relay_reply
        if not mailbox.isascii() and not self._smtputf8:
            return "553 5.6.7 Must declare SMTPUTF8 to deliver to this mailbox name"
        if host.turn is not None and self._client_history().has_turned(host.turn, now):
            return host.default_known if host.turn.reply is None else host.turn.reply
        for key in (f"{local}@{domain}", local, f"@{domain}"):
            if key in host.replies:
                return self._scripted(host.replies[key], mailbox)
        if self._is_greylisted(mailbox, now):
            return host.greylist_reply
        reply = self._judgement(local, domain)
        if host.turn is not None and not reply.startswith("2"):
            self._client_history().count_refusal(host.turn, now)
        return reply

    def _judgement(self, local: str, domain: str) -> str:
        """The reply to a name, for its shape and by the mailboxes."""
        host = self._host
        if host.shape_reply is not None and looks_random(local):
            return host.shape_reply
        everyone = host.catch_all if isinstance(host.catch_all, bool) else domain in host.catch_all
        by_shape = host.accepts is not None and host.accepts.fullmatch(local) is not None
        if everyone or by_shape or host.has_mailbox(local):
            return host.default_known
        return host.default_unknown

    def _is_greylisted(self, mailbox: str, now: float) -> bool:
        host = self._host
        if host.greylist_s is not None:
            since = host.record.first_recipient_at_s.get(mailbox, now)
            if now - since < host.greylist_s:
                return True
        tries = host.greylist_tries
        return tries is not None and host.record.times_answered(mailbox) < tries

    def _client_history(self) -> ClientHistory:
        """What the host remembers for its turn."""
        turn = self._host.turn
        each = turn is not None and turn.each_connection
        return self._history if each else self._host.record.history

    def _scripted(self, replies: str | Sequence[str], mailbox: str) -> str:
        """The first reply to the first RCPT of a mailbox, and so on; the last one from then on."""
        if isinstance(replies, str):
            return replies
        return replies[min(self._host.record.times_answered(mailbox), len(replies) - 1)]

    def _rset(self) -> ScriptReply:
        self._in_mail, self._smtputf8, self._recipients = False, False, 0
        self._accepted = ""
        return ScriptReply("250 2.0.0 Ok")
