"""What a result says to a person: the answer, its reason, each layer, and what to do. Pure.

The one place of these texts, for pages and for every other explanation of a result. A row of
ADVICE belongs to a reason, because the same status may mean that the mailbox is full, that a provider
does not answer, or that our own resolver failed, and each needs different advice.
"""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from mailprobe.engine.address import NotAnAddress, parse
from mailprobe.engine.verdict import Light, Reason, Verdict, light_of

from .lights import LIGHT_COLOURS, WORDS

Layer = Literal["syntax", "disposable", "mx", "mailbox"]
State = Literal[
    "passed", "failed", "no answer", "no clear answer", "not asked", "nothing found", "noted"
]


class AnswerWords(Struct, frozen=True):
    """What to do with an address, in a word and in a sentence; `kind` names it for programs."""

    kind: Literal["keep", "confirm", "drop"]
    word: str
    sentence: str


ANSWERS: Mapping[Light, AnswerWords] = {
    "GREEN_LIGHT": AnswerWords("keep", "Keep", "Mail will most likely arrive."),
    "YELLOW_LIGHT": AnswerWords("confirm", "Confirm", "Not certain. Ask the person to confirm."),
    "RED_LIGHT": AnswerWords("drop", "Drop", "Do not send. Mail comes back or is lost."),
}
ANSWERS_BY_COLOUR: Mapping[str, AnswerWords] = {
    colour: ANSWERS[light] for light, colour in LIGHT_COLOURS.items()
}


class ReasonAdvice(Struct, frozen=True):
    """What a reason means: which layer decided, how it ended there, and what to do.

    `{provider}` is whose mail hosts these are, `{wrong}` what is wrong with the address.
    """

    layer: Layer
    state: State
    found: str  # at the layer
    sentence: str
    link: tuple[str, str] | None = None  # of the operator: what is seen, and where on the page


ASK = "Send a mail with a link to confirm."
LATER = "Try again in some minutes; a list does that by itself."
NOT_NOW = "We could not ask at this moment. This says nothing about the address."

ADVICE: Mapping[Reason, ReasonAdvice] = {
    "accepted": ReasonAdvice(
        "mailbox", "passed", "The host accepts it.",
        "The mail host has this mailbox. It refused a made-up name at the same domain, so its yes "
        "means yes.",
    ),
    "untested": ReasonAdvice(
        "mailbox", "passed", "The host accepts it.",
        "The mail host has this mailbox. It did not answer for a made-up name, so this is a little "
        "less certain.",
    ),
    "catch_all": ReasonAdvice(
        "mailbox", "no clear answer", "The host says yes to every name.",
        f"The mail host says yes to every name, so its yes proves nothing. {ASK}",
    ),
    "syntax": ReasonAdvice("syntax", "failed", "It is not written as an address: {wrong}", "This is not an address: {wrong}"),
    "disposable": ReasonAdvice(
        "disposable", "failed", "The domain, or its mail host, is on it.",
        "Addresses at this domain live for minutes or days. Ask for another one.",
    ),
    "no_mx": ReasonAdvice(
        "mx", "failed", "The domain names no mail host.", "This domain takes no mail."
    ),
    "no_mailbox": ReasonAdvice(
        "mailbox", "failed", "The host says that this mailbox does not exist.",
        "There is no such mailbox. The mail host said so in plain words.",
    ),
    "disabled": ReasonAdvice(
        "mailbox", "failed", "The host says that it is closed.",
        "The mailbox is closed. The mail host said so in plain words.",
    ),
    "bounced": ReasonAdvice(
        "mailbox", "failed", "A mail to it came back.", "A mail to this address came back."
    ),
    "full": ReasonAdvice(
        "mailbox", "no clear answer", "The host says that it is full.",
        "The mailbox is full. Try again in some days.",
    ),
    "greylisted": ReasonAdvice(
        "mailbox", "no clear answer", "The host asks to come back later.",
        f"The mail host asks new senders to come back later. {LATER}",
    ),
    "rate_limited": ReasonAdvice(
        "mailbox", "no clear answer", "Too many requests for the host.",
        f"The mail host takes no more questions for now. {LATER}",
    ),
    "temporary": ReasonAdvice(
        "mailbox", "no clear answer", "The host has trouble at the moment.",
        f"The mail host has trouble at the moment. {LATER}",
    ),
    "policy": ReasonAdvice(
        "mailbox", "no clear answer", "It spoke of its policy, not of the mailbox.",
        f"The mail host answered, but not about the mailbox. {ASK}",
    ),
    "blocked_us": ReasonAdvice(
        "mailbox", "no clear answer", "It refuses this machine.",
        "The mail host refuses this machine, not the address. This says nothing about the address.",
        ("See the hosts", "hosts"),
    ),
    "smtp_blocked": ReasonAdvice(
        "mailbox", "not asked", "{provider} does not answer checks.",
        "{provider} does not tell which mailboxes it has, so this one cannot be checked. Most such "
        f"addresses are good. {ASK}",
    ),
    "needs_smtputf8": ReasonAdvice(
        "mailbox", "not asked", "The host does not support these characters.",
        f"The mail host was not asked: it does not support the characters before the @. {ASK}",
    ),
    "host_down": ReasonAdvice(
        "mailbox", "no answer", "The host cannot be reached.",
        f"The mail host cannot be reached. This says nothing about the address. {LATER}",
    ),
    "host_error": ReasonAdvice(
        "mailbox", "no answer", "The host broke off.",
        f"The mail host broke off. This says nothing about the address. {LATER}",
    ),
    "host_changed": ReasonAdvice(
        "mailbox", "no clear answer", "The host contradicts itself.",
        f"The mail host contradicted itself, so its answers do not count. {LATER}",
    ),
    "host_budget": ReasonAdvice(
        "mailbox", "not asked", "The host allows no more for now.", f"{NOT_NOW} {LATER}"
    ),
    "unconfirmed": ReasonAdvice(
        "mailbox", "no clear answer", "The host has accepted no address yet.",
        "The mail host has refused every address so far, so its refusal proves nothing yet. "
        f"{LATER}",
    ),
    "timeout": ReasonAdvice(
        "mailbox", "no answer", "The host said nothing in time.",
        f"The mail host did not answer in time. This says nothing about the address. {LATER}",
    ),
    "no_connection_free": ReasonAdvice(
        "mailbox", "not asked", "No connection of ours was free.", f"{NOT_NOW} {LATER}"
    ),
    "no_egress": ReasonAdvice(
        "mailbox", "not asked", "There was no way out to the host.", f"{NOT_NOW} {LATER}",
        ("See the ways out", "egresses"),
    ),
    "resolver": ReasonAdvice(
        "mx", "no answer", "The DNS look-up failed.",
        "The domain could not be looked up: our own resolver failed. This says nothing about the "
        f"address. {LATER}",
        ("See the resolvers", "resolvers"),
    ),
    "not_asked": ReasonAdvice(
        "mailbox", "not asked", "This service asks no mail hosts.",
        f"The mail host was not asked: this service asks no mail hosts. {ASK}",
    ),
    "paused": ReasonAdvice(
        "mailbox", "not asked", "Asking is paused.",
        f"{NOT_NOW} The operator of this service has paused it.", ("See the pauses", "pauses"),
    ),
    "unclear": ReasonAdvice(
        "mailbox", "no clear answer", "It spoke of something else.",
        f"The mail host answered, but not about the mailbox. {ASK}",
    ),
}  # fmt: skip

NAMES: Mapping[Layer, str] = {
    "syntax": "Syntax",
    "disposable": "Throwaway list",
    "mx": "Mail host",
    "mailbox": "Mailbox",
}
SIGNALS = "Signals"
# Reasons that leave no doubt by themselves.
DECIDED: frozenset[Reason] = frozenset(
    ("accepted", "untested", "syntax", "disposable", "no_mx", "no_mailbox", "disabled", "bounced")
)
ORDER: tuple[Layer, ...] = tuple(NAMES)
# By the ending of a mail host's name: providers that do not answer checks, as people call them.
PROVIDERS: Mapping[str, str] = {
    "google.com": "Gmail", "googlemail.com": "Gmail", "yahoodns.net": "Yahoo",
    "outlook.com": "Outlook", "hotmail.com": "Outlook", "mx.microsoft": "Outlook",
    "icloud.com": "iCloud", "aol.com": "AOL", "qq.com": "QQ Mail", "163.com": "NetEase",
}  # fmt: skip


class ShownLayer(Struct, frozen=True):
    """One of the five layers: how it ended, and what was found there."""

    name: str
    state: State
    found: str


def answer_of(verdict: Verdict) -> AnswerWords:
    return ANSWERS[light_of(verdict)]


def capital(words: str) -> str:
    """The words as a sentence begins with them."""
    return words[:1].upper() + words[1:]


def reason_words(reason: Reason, light: Light) -> str:
    """A reason in a few words, of many addresses; only a typo makes some reasons doubtful."""
    if reason == "smtp_blocked":
        return "Provider does not answer checks"
    words = WORDS[reason]
    if light == "YELLOW_LIGHT" and reason in DECIDED:
        return "Perhaps a typo" if reason == "disposable" else f"Perhaps a typo: {words}"
    return capital(words)


def why_of(verdict: Verdict, reason: Reason) -> str:
    """The reason in a few words, for a column. A suggestion comes before all else."""
    if verdict.suggestion is not None:
        return f"Perhaps a typo: {verdict.suggestion}?"
    if reason == "smtp_blocked":
        return f"{provider_of(verdict)} does not answer checks"
    return reason_words(reason, light_of(verdict))


def advice_of(verdict: Verdict, reason: Reason) -> str:
    """What to do, in a few sentences. A suggestion comes first, and alone."""
    if (meant := verdict.suggestion) is None:
        return _filled(ADVICE[reason].sentence, verdict)
    typo = "" if "@" in meant else f" {verdict.email.rpartition('@')[2]} looks like a typo of it."
    return f"Did you mean {meant}?{typo} Ask the person, or verify the corrected address."


def provider_of(verdict: Verdict) -> str:
    """Whose mail hosts these are, or the word for it."""
    host = f".{verdict.mx_host or ''}"
    return next(
        (name for end, name in PROVIDERS.items() if host.endswith(f".{end}")), "The provider"
    )


def layers_of(verdict: Verdict, reason: Reason) -> list[ShownLayer]:
    """The five layers, from the reason: what comes after a failure was not asked."""
    advice = ADVICE[reason]
    decided = ORDER.index(advice.layer)
    passed: Mapping[Layer, str] = {
        "syntax": "The address is well formed.",
        "disposable": "The domain is not on it.",
        "mx": f"Mail goes to {verdict.mx_host}.",
        "mailbox": "",
    }
    layers = [ShownLayer(NAMES[layer], "passed", passed[layer]) for layer in ORDER[:decided]]
    layers.append(ShownLayer(NAMES[advice.layer], advice.state, _filled(advice.found, verdict)))
    layers += [
        ShownLayer(NAMES[layer], "not asked", "An earlier check decided.")
        for layer in ORDER[decided + 1 :]
    ]
    return [*layers, _signals(verdict, reason)]


def _signals(verdict: Verdict, reason: Reason) -> ShownLayer:
    if reason == "syntax":
        return ShownLayer(SIGNALS, "not asked", "An earlier check decided.")
    noted = [
        words
        for words, is_so in (
            (f"a typo of {verdict.suggestion}", verdict.suggestion is not None),
            ("a role name", verdict.role),
            ("a free provider", verdict.free_provider),
        )
        if is_so
    ]
    if not noted:
        return ShownLayer(SIGNALS, "nothing found", "No typo, no role name, no free provider.")
    words = ", ".join(noted)
    return ShownLayer(SIGNALS, "noted", f"{words[0].upper()}{words[1:]}.")


def _filled(text: str, verdict: Verdict) -> str:
    if "{wrong}" not in text:
        return text.replace("{provider}", provider_of(verdict))
    try:
        parse(verdict.email)
    except NotAnAddress as error:
        return text.replace("{wrong}", f"{error}.")
    return text.replace("{wrong}", "something stands around it.")
