"""Lines that real hosts say, classified by hand.

`replies.tsv` and `replies_more.tsv` come from bounce parsers and mail servers;
`replies_subjects.tsv` has pairs in many languages whose words differ in little but whom
they speak of. `replies_verdicts.tsv` says of lines like those, made up to mislead,
only whether they condemn the address.
"""

import csv
from pathlib import Path

from mailprobe.engine.smtp.wire import SmtpReply

HERE = Path(__file__).parent
COLLECTIONS = ["replies.tsv", "replies_more.tsv", "replies_subjects.tsv"]
Row = dict[str, str]


def rows_of(name: str) -> list[Row]:
    with (HERE / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


VERDICTS = rows_of("replies_verdicts.tsv")
ROWS = {name: rows_of(name) for name in COLLECTIONS}
ALL_ROWS = [row for rows in ROWS.values() for row in rows]


def reply_of(row: Row) -> SmtpReply:
    return SmtpReply(int(row["code"]), (f"{row['enhanced_code']} {row['text']}".strip(),))
