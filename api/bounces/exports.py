"""Lists that mail services export: which rows say that mail came back, and as what. Pure.

The kind of a bounce comes from one column: that of a known layout, else one whose name and
whose values are kinds of bounces. Free text is read by the reply rules alone, and only where
the row says that it bounced or the text has a reply's code. A row that says neither changes
nothing: an activity log, or a list of customers, has words of every sort.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct, field

from .kinds import (
    ENHANCED,
    REPLY,
    SPARKPOST_CLASSES,
    Kind,
    kind_of_bounce,
    kind_of_reason,
)

Saying = Kind | Literal["none"]  # "none": that it did not bounce
Words = Mapping[str, Saying]

CELL_MAX = 2_000  # characters of a cell that are read
ROW_TEXT_MAX = 4_000
COLUMNS_MAX = 1_000  # whose names are judged
EXAMPLE_MAX = 60  # characters of a cell that are shown


class Said(NamedTuple):
    """What a row says: the kind of its bounce, None if it does not say that it bounced."""

    kind: Kind | None
    words: str  # the cell that decided, with its column's name


def _words(**by_saying: str) -> dict[str, Saying]:
    sayings: dict[str, Saying] = {
        name: name  # type: ignore[misc]  # the parameters are named as the sayings
        for name in by_saying
    }
    return {word: sayings[name] for name, listed in by_saying.items() for word in listed.split()}


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Values as `key_of_name` writes them: lower case, letters and digits alone.
#
# These say it by themselves, in each column that is named like a kind.
SURE = _words(
    no_mailbox="hardbounce hardbounced hardbounces bouncehard bouncedhard permanentbounce "
    "permanentfailure permanentfail bouncepermanent hardfail hardfailure nxdomain",
    temporary="softbounce softbounced softbounces bouncesoft bouncedsoft transientbounce "
    "temporarybounce temporaryfailure temporaryfail bouncetransient softfail softfailure "
    "deferred deferral deliverydelayed",
    unknown="bounce bounced bounces bouncedback emailbounced emailbounce messagebounced "
    "mailbounced outofband outofbandbounce undetermined undeterminedbounce",
    none="delivered delivery opened open opens firstopening uniqueopened proxyopen loadedbyproxy "
    "clicked click clicks unsubscribed unsubscribe unsubscribes unsub groupunsubscribe complaint "
    "complained spamreport spamcomplaint markedasspam processed sent send injection request requests "
    "queued accepted subscribed subscribe listaddition resubscribed autoreply autoresponder stored",
)
# These only where every value of the column is one of a mail service's.
USUAL = _words(
    no_mailbox="hard",
    temporary="soft",
    unknown="cleaned",
    none="nonsubscribed spam scheduled canceled cancelled pending retrying error delayed delay",
)
# These as well, where the column is one of events: elsewhere it may be a contract's or a payment's.
OF_EVENTS = _words(
    no_mailbox="permanent",
    temporary="transient temporary dropped drop blocked suppressed",
    unknown="failed fail failure undelivered rejected reject notdelivered",
)
# And these where the column's name has the word bounce.
OF_BOUNCES = _words(
    no_mailbox="permanent invalid invalidemail invalidemailaddress invalidaddress invalidrecipient "
    "badmailbox bademail bademailaddress badaddress badaddressorsyntax noemail nosuchuser "
    "unknownuser userunknown unknownrecipient recipientunknown nonexistent nonexistentaddress "
    "nonexistant doesnotexist addressdoesnotexist mailboxdoesnotexist mailboxnotfound "
    "mailboxunknown unknownmailbox usernotfound invaliddomain baddomain domaindoesnotexist "
    "unknowndomain disabled inactive mailboxinactive mailboxdisabled accountdisabled hb "
    "inactivemailbox",
    temporary="transient temporary full mailboxfull overquota quota quotaexceeded mailboxoverquota "
    "greylisted greylisting timeout connection connectiontimeout connectionissue dnsfailure "
    "dnserror suppressed suppression suppressedlist onaccountsuppressionlist preblocked "
    "previouslybounced vacation technical technicalfailure sb quotaissues messageexpired "
    "noanswerfromhost badconnection routingerrors",
    refused="blocked block spam spamblock spamcontent spamnotification policy policyissue "
    "policyrelated content contentrejected contentblocked contentblock reputation ipreputation "
    "domainreputation dmarc dmarcpolicy senderblocked messagetoolarge toolarge attachmentrejected "
    "relaydenied relayingdenied mailblock blacklisted contentrelated spamrelated virusrelated "
    "relayingissues invalidsender protocolerrors",
    unknown="general generalbounce other unknown undeliverable suspended unclassified",
    none="vacationautoreply manual manuallydeactivated manualsuppression userunsubscribed",
)  # fmt: skip
YES = frozenset({"true", "yes", "y", "x", "ja", "oui", "si", "wahr"})
NOTHING = {""} | _set(  # values that say no, where another column may say yes
    "0 00 n no false none never na notapplicable nobounce notbounced null nil nan nein non "
    "ok valid active good"
)
COUNT = re.compile(r"\d{1,9}(?:\.0+)?")
DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}\b.*|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}\b.*|\d{10}(?:\d{3})?"
)

# A column of kinds has one of these words in its name, and beside it only those of BESIDE.
KIND_NAMES = _set(
    "type kind status state event events category cat class classification result outcome severity "
    "action suppressions "
    "reason typ tipo statut estado stato ereignis grund motivo motif raison art activity"
)
EVENT_NAMES = frozenset({"event", "events", "severity", "delivery", "ereignis"})
PLAIN_NAMES = _set("type typ tipo kind reason grund motivo motif raison status")
TYPE_NAMES = frozenset(
    {"type", "kind", "category", "cat", "class", "classification", "subtype", "typ", "tipo"}
)
# Columns of free text; those of SERVER_NAMES hold nothing but what mail servers say.
TEXT_NAMES = _set(
    "reason reasons description detail details code status message text raw "
    "grund motivo motif raison"
)
SERVER_NAMES = _set(
    "smtp dsn diag diagnostic diagnosis error errors response reply output enhanced fehler"
)
BESIDE = _set(
    "email emails e mail mails message msg smtp delivery last latest first record sub subtype name "
    "marketing number of is has was date time at count total num no recipient rcpt the by on raw log "
    "hard soft hs enum timestamp ts mta server remote st esp suppression notification"
)
SENDER_KEYS = _set(
    "from fromemail fromaddress sender senderemail senderaddress mailfrom envelopefrom orig returnpath"
)
RECIPIENT_KEYS = _set(
    "to toemail toaddress emailto rcpt rcptto recipient recipients recipientemail recipientaddress "
    "emailrecipient"
)
# As well, beside the word bounce: a contact's status alone is not one of mail.
OF_PEOPLE = _set("contact prospect subscriber customer user person lead member campaign newsletter")
WORD = re.compile(r"[A-Z]+(?![a-z])|[^\W\d_A-Z]+|[A-Z][^\W\d_A-Z]+|\d+")


class Layout(Struct, frozen=True):
    """A service's list, known by the names of its columns.

    The values of `kinds` are looked up together in `words`, then without the last of them.
    """

    service: str
    needs: tuple[str, ...]
    kinds: tuple[str, ...]
    words: Words
    address: str | None = None  # its column, if others have addresses too
    rest: Saying | None = "none"  # a value that is not in `words`; None: the text may say it


SENDGRID = _words(
    unknown="bounce bounced", temporary="bounceblocked blocked block dropped drop deferred"
)
SPARKPOST: Words = {
    **{f"bounce{number}": kind for number, kind in SPARKPOST_CLASSES.items()},
    **{f"outofband{number}": kind for number, kind in SPARKPOST_CLASSES.items()},
    **_words(
        none="bounce60 bounce80 bounce90 outofband60 outofband80 outofband90",
        unknown="bounce outofband",
        temporary="delay policyrejection generationrejection generationfailure",
    ),
}
BREVO = _words(
    no_mailbox="hardbounce hardbounced hardbounces invalidemail invalid invalidemails",
    temporary="softbounce softbounced softbounces deferred blocked error",
)
POSTMARK = _words(
    no_mailbox="hardbounce bademailaddress",
    temporary="softbounce transient dnserror blocked smtpapierror",
    refused="spamnotification virusnotification dmarcpolicy",
    unknown="unknown",
)
LAYOUTS = (
    Layout("SendGrid", ("event", "email", "recvmessageid"), ("event", "type"), SENDGRID, "email"),
    Layout("SendGrid", ("event", "email", "sgmessageid"), ("event", "type"), SENDGRID, "email"),
    Layout("SendGrid", ("event", "email", "sgeventid"), ("event", "type"), SENDGRID, "email"),
    Layout(
        "SendGrid", ("reason", "email", "created"), ("reason",),
        _words(no_mailbox="maildomainmentionedinemailaddressisunknown knownbaddomain"),
        "email", rest=None,
    ),
    Layout(
        "SendGrid", ("fromemail", "toemail", "status", "msgid"), ("status",),
        _words(unknown="notdelivered bounce bounced"), "toemail",
    ),
    Layout("Postmark", ("type", "email", "bouncedat"), ("type",), POSTMARK, "email"),
    Layout("Postmark", ("recordtype", "type", "email"), ("type",), POSTMARK, "email"),
    Layout(
        "Postmark", ("emailaddress", "suppressionreason"), ("suppressionreason",),
        _words(no_mailbox="hardbounce"), "emailaddress",
    ),
    Layout(
        "Mailgun", ("event", "recipient", "severity"), ("event", "severity", "reason"),
        _words(
            unknown="failed failedpermanent",
            temporary="failedtemporary failedpermanentsuppressbounce "
            "failedpermanentsuppresscomplaint failedpermanentsuppressunsubscribe "
            "failedpermanentold rejected",
        ),
        "recipient",
    ),
    Layout(
        "SES", ("bouncetype", "bouncesubtype"), ("bouncetype", "bouncesubtype"),
        _words(
            no_mailbox="hard",  # as other services write it in these columns
            unknown="permanent permanentgeneral permanentnoemail undetermined",
            temporary="permanentsuppressed permanentonaccountsuppressionlist "
            "permanentunsubscribedrecipient transient soft",
        ),
        "emailaddress",
    ),
    Layout(
        "SES", ("emailaddress", "reason", "lastupdatetime"), ("reason",),
        _words(unknown="bounce"), "emailaddress",
    ),
    Layout(
        "SES", ("destination", "lastdeliveryevent"), ("lastdeliveryevent",),
        _words(
            unknown="bounce permanentbounce hardbounce undeterminedbounce",
            temporary="transientbounce softbounce deliverydelay",
        ),
        "destination",
    ),
    Layout("Brevo", ("sttext", "email"), ("sttext",), BREVO, "email"),
    Layout("Brevo", ("event", "email", "tsevent"), ("event",), BREVO, "email"),
    Layout(
        "Mailjet", ("event", "email", "errorrelatedto"), ("event", "hardbounce"),
        _words(no_mailbox="bouncetrue bounce1", temporary="bounce bouncefalse bounce0 blocked"),
        "email",
    ),
    Layout(
        "Mandrill", ("emailaddress", "sender", "status", "bouncedetail"),
        ("status", "bouncedetail"),
        _words(
            no_mailbox="bouncedbadmailbox bouncedinvaliddomain", unknown="bounced hardbounced",
            temporary="softbounced deferred rejected",
        ),
        "emailaddress",
    ),
    Layout(
        "Mandrill", ("email", "reason", "detail", "createdat"), ("reason",),
        _words(no_mailbox="hardbounce", temporary="softbounce"), "email",
    ),
    Layout("SparkPost", ("type", "rcptto", "bounceclass"), ("type", "bounceclass"), SPARKPOST, "rcptto"),
    Layout(
        "SparkPost", ("recipient", "type", "source"), ("source",),
        _words(unknown="bouncerule"), "recipient",
    ),
    Layout(
        "Resend", ("to", "lastevent"), ("lastevent",),
        _words(unknown="bounced", temporary="suppressed deliverydelayed"), "to",
    ),
    # "Cleaned": it bounced hard, or softly several times; nothing says which.
    Layout("Mailchimp", ("emailaddress", "cleantime"), ("cleantime",), {}, "emailaddress", "unknown"),
    Layout(
        "HubSpot", ("emailhardbouncereason",), ("emailhardbouncereason",), OF_BOUNCES, None, "unknown"
    ),
)  # fmt: skip


def key_of_name(text: str) -> str:
    """The letters and digits of a name or a value, lower case."""
    return "".join(c for c in text[:CELL_MAX].casefold() if c.isalnum())


def layout_of(columns: Sequence[str]) -> Layout | None:
    """The layout that has these columns; the first of several."""
    names = frozenset(map(_last_part, columns[:COLUMNS_MAX]))
    return next((layout for layout in LAYOUTS if names.issuperset(layout.needs)), None)


def address_column(columns: Sequence[str]) -> str | None:
    """The name of the column of the addresses, where a layout says it.

    Or where one column is the sender's by its name, and one the recipient's.
    """
    layout, keys = layout_of(columns), [*map(_last_part, columns[:COLUMNS_MAX])]
    wanted = RECIPIENT_KEYS if not SENDER_KEYS.isdisjoint(keys) else frozenset()
    if layout is not None and layout.address is not None:
        wanted = frozenset({layout.address})
    return next((columns[place] for place, key in enumerate(keys) if key in wanted), None)


def _last_part(column: str) -> str:
    """A column's key, without the objects that it is a field of: `bounce.bounceType`."""
    return key_of_name(column.strip().rsplit(".", 1)[-1])


class ExportSurvey(Struct):
    """Which columns have only values that are kinds; known once all rows were added."""

    impure: set[int] = field(default_factory=set)

    def add(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Add rows, whose columns are known so far."""
        open_ = {
            position: _vocabulary(name)
            for position, name in enumerate(columns[:COLUMNS_MAX])
            if position not in self.impure and _is_kind_name(name)
        }
        for cells in rows:
            for position, words in [*open_.items()]:
                value = cells[position] if position < len(cells) else ""
                if (key := key_of_name(value)) and key not in words:
                    self.impure.add(position)
                    del open_[position]


class ExportReader:
    """Reads the rows of a list with these columns."""

    def __init__(self, columns: Sequence[str], survey: ExportSurvey) -> None:
        self._columns = [*columns[:COLUMNS_MAX]]
        self._layout = layout = layout_of(columns)
        by_name = {_last_part(name): place for place, name in reversed([*enumerate(self._columns)])}
        self._kinds = [by_name[name] for name in layout.kinds if name in by_name] if layout else []
        places = [] if layout else [*enumerate(self._columns)]
        self._bounces = sorted(
            (place for place, name in places if _is_bounce_name(name)), key=self._rank
        )
        self._named = [place for place, name in places if _is_kind_name(name)]
        # Its column of kinds may have a reason in a mail server's words.
        self._is_free_text = layout is not None and layout.rest == "unknown"
        self._impure = frozenset(survey.impure)
        self._texts = {
            place: layout is not None or _is_of_server(name)
            for place, name in enumerate(self._columns)
            if _is_text_name(name)
        }

    @property
    def read_as(self) -> str:
        """Whose list it is taken for, or which column says the kind."""
        if self._layout is not None:
            return f"{self._layout.service}, column {self._columns[self._kinds[0]].strip()}"
        for place in (*self._bounces, *self._named):
            return f"column {self._columns[place].strip()}"
        return "the text of the rows"

    def read(self, cells: Sequence[str], address: str) -> Said:
        """What a row says of its address."""
        texts = self._texts if self._columns else dict.fromkeys(range(len(cells)), False)
        own = {place: _without(_cell(cells, place), address) for place in texts}
        saying, place = self._saying(cells)
        if saying == "none":
            return Said(None, self._shown(cells, place))
        if saying is None:
            text = _joined(own.values())
            kind = kind_of_reason(text)
            deciding = next((at for at, of_server in texts.items() if own[at] and of_server), None)
            if deciding is None:  # a status by itself (RFC 3463) can be nothing else
                deciding = next((at for at in own if self._is_status(at, own[at])), None)
            if not (_has_reply(text) if deciding is not None else kind and _is_surely_reply(text)):
                return Said(None, self._shown(cells, place))
            at = next(at for at in (deciding, *own) if at is not None and own[at])
            return Said(kind or "unknown", self._shown(cells, at))
        reason = _joined(text for at, text in own.items() if at != place or self._is_free_text)
        return Said(kind_of_bounce(saying, reason), self._shown(cells, place))

    def _saying(self, cells: Sequence[str]) -> tuple[Saying | None, int | None]:
        """What the column of kinds says, and which it is."""
        if self._layout is not None:
            return self._saying_of_layout(self._layout, cells)
        denied: int | None = None
        for place in self._bounces:
            cell = _cell(cells, place)
            if key_of_name(cell) not in NOTHING:
                return self._of_bounce_column(place, cell), place
            denied = place if cell.strip() else denied
        for place in self._named:
            saying = self._of_kind_column(place, key_of_name(_cell(cells, place)))
            if saying is not None:
                return saying, place
        if denied is not None:
            return "none", denied
        filled = (place for place in self._named if _cell(cells, place).strip())
        return None, next(filled, None)

    def _saying_of_layout(
        self, layout: Layout, cells: Sequence[str]
    ) -> tuple[Saying | None, int | None]:
        keys = [key_of_name(_cell(cells, place)) for place in self._kinds]
        if not keys[0]:
            return None if layout.rest is None else "none", self._kinds[0]
        for length in range(len(keys), 0, -1):
            if (saying := layout.words.get("".join(keys[:length]))) is not None:
                return saying, self._kinds[0]
        return layout.rest, self._kinds[0]

    def _of_bounce_column(self, place: int, cell: str) -> Saying:
        """What a cell says whose column has the word bounce in its name."""
        text, name = cell.strip(), key_of_name(self._columns[place])
        key = key_of_name(text)
        flag: Saying = (
            "no_mailbox" if "hard" in name else "temporary" if "soft" in name else "unknown"
        )
        if key in YES or DATE.fullmatch(text) or COUNT.fullmatch(text):
            return flag
        saying = OF_BOUNCES.get(key) or _sure(key) or USUAL.get(key)
        if flag == "temporary":
            return flag if saying != "none" else saying
        return saying or kind_of_reason(text[:CELL_MAX]) or "unknown"

    def _of_kind_column(self, place: int, key: str) -> Saying | None:
        if (saying := _sure(key)) is not None:
            return saying
        return None if place in self._impure else _vocabulary(self._columns[place]).get(key)

    def _rank(self, place: int) -> tuple[int, int]:
        """Columns of hard bounces first, then those of kinds, then the others."""
        name = key_of_name(self._columns[place])
        words = _name_words(self._columns[place])
        if "hard" in name or "soft" in name:
            return (0 if "hard" in name else 4), place
        return (1 if words & TYPE_NAMES else 2 if words & KIND_NAMES else 3), place

    def _is_status(self, place: int, text: str) -> bool:
        named = place < len(self._columns) and key_of_name(self._columns[place]) == "status"
        return named and STATUS.fullmatch(text) is not None

    def _shown(self, cells: Sequence[str], place: int | None) -> str:
        text = "" if place is None else _cell(cells, place).strip()
        if not text:
            return ""
        short = text if len(text) <= EXAMPLE_MAX else f"{text[:EXAMPLE_MAX]}…"
        name = self._columns[place].strip() if place is not None and self._columns else ""
        return f"{name}: {short}" if name else short


def _name_words(column: str) -> frozenset[str]:
    return frozenset(word.casefold() for word in WORD.findall(column[:CELL_MAX]))


def _is_bounce_name(column: str) -> bool:
    words = _name_words(column)
    bounces = {word for word in words if "bounc" in word}
    others = words - bounces
    return bool(bounces) and others <= KIND_NAMES | TEXT_NAMES | SERVER_NAMES | BESIDE | OF_PEOPLE


def _is_kind_name(column: str) -> bool:
    words = _name_words(column)
    return bool(words & KIND_NAMES) and words <= KIND_NAMES | BESIDE


def _is_text_name(column: str) -> bool:
    words = _name_words(column.rsplit(".", 1)[-1])
    texts = words & (TEXT_NAMES | SERVER_NAMES)
    bounces = {word for word in words if "bounc" in word}
    return bool(texts) and words - texts - bounces <= KIND_NAMES | BESIDE


def _is_of_server(column: str) -> bool:
    words = _name_words(column)
    return bool(words & SERVER_NAMES) or any("bounc" in word for word in words)


def _vocabulary(column: str) -> Words:
    """The values of a column of kinds with this name."""
    words = _name_words(column)
    if words & EVENT_NAMES:
        return {**SURE, **USUAL, **OF_EVENTS}
    return {**SURE, **USUAL} if words & PLAIN_NAMES else SURE


def _sure(key: str) -> Saying | None:
    """What a value says by itself, such as "Hard bounce (invalid domain)"."""
    begun = next((word for word in ("hardbounce", "softbounce") if key.startswith(word)), key)
    return SURE.get(begun)


def _cell(cells: Sequence[str], place: int) -> str:
    return cells[place][:CELL_MAX] if place < len(cells) else ""


def _without(cell: str, address: str) -> str:
    """A cell without the address, which may have words of a reason in it."""
    return cell[:CELL_MAX].replace(address, "").strip(" \t<>:,;")


BARE_CODE = re.compile(r"[45]\d\d")
STATUS = re.compile(r"[45]\.\d{1,3}\.\d{1,3}")
PERMANENT = re.compile(r"(?<![\d.,:/-])5\d\d[ -]")


def _has_reply(text: str) -> bool:
    return bool(REPLY.search(text) or ENHANCED.search(text))


def _is_surely_reply(text: str) -> bool:
    """Whether it can be nothing but a reply: words may follow the number of an article."""
    return _has_reply(text) and bool(
        PERMANENT.search(text) or re.search(r"[45]\d\d[ -][45]\.\d", text)
    )


def _joined(texts: Iterable[str]) -> str:
    """The texts as paragraphs; a code that has a cell of its own is put before the others."""
    kept = [text for text in texts if text]
    codes = [text for text in kept if BARE_CODE.fullmatch(text)]
    others = [text for text in kept if text not in codes]
    return "\n\n".join(_with_code(others, codes) if others else codes[:1])[:ROW_TEXT_MAX]


def _with_code(texts: Sequence[str], codes: Sequence[str]) -> Iterator[str]:
    for text in texts:
        yield text if REPLY.search(text) or not codes else f"{codes[0]} {text}"
