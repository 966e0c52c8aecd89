"""What was measured: of each server and case the reply that decided, the rule, the verdict.

Written to `.peers/measured.md` when the tests end; docs/peers.md shows it.
"""

from tests.peers.engine_runs import Told
from tests.peers.programs import PEERS

ROWS: dict[tuple[str, str], tuple[str, str, str]] = {}


def note(server: str, case: str, reported: Told) -> None:
    verdict = reported.verdict
    status = f"{verdict.status}, {verdict.failed_check}" if verdict.failed_check else verdict.status
    ROWS[server, case] = (reported.deciding_line, reported.rule, status)


def write() -> None:
    lines = ["| server | case | reply | rule | verdict |", "|---|---|---|---|---|"]
    for (server, case), (reply, rule, status) in ROWS.items():
        shown = reply.replace("|", "\\|")
        lines.append(f"| {server} | {case} | `{shown}` | `{rule}` | {status} |")
    (PEERS / "measured.md").write_text("\n".join(lines) + "\n")
