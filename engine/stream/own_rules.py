"""The rules of the engine itself, beside those of the table of replies."""

from ..dns.messages import DNS_LAG_RULE
from ..pauses import PAUSED_RULE
from ..smtp.catchall import RANDOM_ACCEPTED, RANDOM_UNANSWERED, RANDOM_UNASKED
from ..smtp.controls import CHANGED_RULE, UNCONFIRMED_RULE
from ..smtp.probe import (
    EGRESS_FAILED_RULE,
    EGRESS_FAMILY_RULE,
    EGRESS_OUT_RULE,
    NO_EGRESS_RULE,
)
from ..smtp.replies.rules import ACCEPTED, NOT_UNDERSTOOD, QUOTED, Step
from ..smtp.tolerance.limits import BAN_RULE, BUDGET_RULE

# The rules that are not rows of replies.toml.
OWN_RULES: tuple[str, ...] = (
    *("syntax", "disposable", "disposable.host", "no_mx", "mx.no-host", "resolver"),
    "smtp_blocked",
    *("bounced", "not_asked", "never_ask", PAUSED_RULE),
    *("exchange.no-address", "exchange.not-public", "exchange.lookup-failed", DNS_LAG_RULE),
    *("connect.failed", "connect.unreachable", "clock.connect", "clock.overall", "clock.permit"),
    *(f"{what}.{step.value}" for what in ("clock", "garbage", "closed") for step in Step),
    *("smtputf8.not-offered", RANDOM_ACCEPTED, RANDOM_UNANSWERED, RANDOM_UNASKED),
    *(CHANGED_RULE, BUDGET_RULE, NO_EGRESS_RULE, EGRESS_FAILED_RULE, EGRESS_FAMILY_RULE),
    *(EGRESS_OUT_RULE, UNCONFIRMED_RULE, BAN_RULE),
    *(ACCEPTED.rule, NOT_UNDERSTOOD.rule, *(reading.rule for reading in QUOTED)),
)
