"""Replies of real hosts, classified by hand.

`replies.tsv` and `replies_more.tsv` come from bounce parsers and mail servers;
`replies_subjects.tsv` has pairs in many languages whose words differ in little but whom
they speak of; `replies_gateways.tsv` has what servers, gateways and providers say of
counts, caches, senders and codes; `replies_nested.tsv` has replies that quote another
host's, and more languages; the rules were not yet changed for `replies_held_out.tsv`
when it was written. `replies_verdicts.tsv` says of lines like those, made up to mislead,
only whether they condemn the address. `replies_operators.tsv` has what operators and gateways
in many countries say, classified by hand before the rules were tried on it.

The benchmark scores the same collections (bench/suites/replies.py).
"""

from mailprobe.bench.suites.replies import Row, collections, reply_of_row
from mailprobe.engine.smtp.replies.rules import Rules, RuleTable

_EVERY = collections()
VERDICTS = _EVERY.pop("replies_verdicts.tsv")
ROWS = _EVERY
COLLECTIONS = sorted(ROWS)
ALL_ROWS: list[Row] = [row for rows in ROWS.values() for row in rows]
reply_of = reply_of_row


def parse_rules(toml: str) -> Rules:
    """Read rules from a TOML text. Raises KeyError, ValueError or re.error for an invalid rule."""
    rules = Rules(RuleTable(lambda: toml))
    rules.compile_all()
    return rules
