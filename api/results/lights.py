"""The reason for a verdict in words, the looks of statuses, and the names of lights. Pure."""

from collections.abc import Mapping
from typing import Literal

from mailprobe.engine.verdict import Blame, Light, Reason

from ..errors import Misuse

StatusColour = Literal["green", "yellow", "grey", "red"]
# Of a light, the best first.
LIGHT_COLOURS: Mapping[Light, Literal["green", "yellow", "red"]] = {
    "GREEN_LIGHT": "green",
    "YELLOW_LIGHT": "yellow",
    "RED_LIGHT": "red",
}
# The colour of each status, alike in the terminal, the report and the pages.
STATUS_COLOURS: Mapping[str, StatusColour] = {
    "deliverable": "green",
    "catch_all": "yellow",
    "unknown": "grey",
    "undeliverable": "red",
    "invalid": "red",
}

# Each reason in words for a person.
WORDS: dict[str, str] = {
    "accepted": "mailbox accepted",
    "untested": "accepted, made-up name not answered",
    "catch_all": "host accepts any name",
    "syntax": "not an address",
    "disposable": "throwaway domain",
    "no_mx": "domain takes no mail",
    "no_mailbox": "no such mailbox",
    "disabled": "mailbox is closed",
    "bounced": "mail to it came back",
    "full": "mailbox is full",
    "greylisted": "host asks to come back later",
    "rate_limited": "too many requests for the host",
    "temporary": "host has trouble at the moment",
    "policy": "host refuses by its policy",
    "blocked_us": "host refuses this machine",
    "smtp_blocked": "provider blocks checking",
    "needs_smtputf8": "host does not support these characters",
    "host_down": "mail host cannot be reached",
    "host_error": "mail host broke off",
    "host_changed": "host contradicts itself",
    "host_budget": "host takes no more refusals for now",
    "unconfirmed": "host has accepted no address yet",
    "timeout": "no answer in time",
    "no_connection_free": "no connection of ours was free",
    "no_egress": "no way out to the host for now",
    "resolver": "DNS look-up failed",
    "not_asked": "mail host not asked",
    "paused": "asking is paused for now",
    "unclear": "no clear answer",
}


# Reasons that need a mail host's reply to a recipient.
ANSWERED: tuple[Reason, ...] = (
    *("accepted", "catch_all", "no_mailbox", "disabled", "full", "greylisted", "temporary"),
    *("rate_limited", "policy", "unclear", "untested", "host_changed", "host_budget"),
    "unconfirmed",
)
UNREACHED: tuple[Reason, ...] = ("host_down", "timeout", "host_error")
OURS: tuple[Blame, ...] = ("us", "network")  # not the address's fault, nor the host's


def lights_of(names: str, option: str) -> frozenset[Light]:
    """`green,yellow` as lights. Raises Misuse."""
    known: dict[str, Light] = {colour: light for light, colour in LIGHT_COLOURS.items()}
    words = [word.strip().lower().removesuffix("_light") for word in names.split(",")]
    if not all(word in known for word in words):
        raise Misuse(f"{option} takes green, yellow and red, with a comma between them")
    return frozenset(known[word] for word in words)
