"""Records, for each server and case, the deciding reply, the rule and the verdict.

They are written to `.peers/measured.md` when the tests end; dev/peers.md shows them.
"""

from tests.peers.engine_runs import Finding
from tests.peers.programs.process import PEERS

ROWS: dict[tuple[str, str], tuple[str, str, str]] = {}


def record(server: str, case: str, finding: Finding) -> None:
    verdict = finding.verdict
    status = f"{verdict.status}, {verdict.failed_check}" if verdict.failed_check else verdict.status
    ROWS[server, case] = (finding.deciding_reply, finding.rule, status)


def merge(rows: list[tuple[tuple[str, str], tuple[str, str, str]]]) -> None:
    """Add the rows of another of the test runner's processes."""
    ROWS.update((tuple(key), tuple(row)) for key, row in rows)  # type: ignore[misc]


def write() -> None:
    lines = ["| server | case | reply | rule | verdict |", "|---|---|---|---|---|"]
    for (server, case), (reply, rule, status) in sorted(ROWS.items(), key=lambda row: row[0][0]):
        shown = reply.replace("|", "\\|")
        lines.append(f"| {server} | {case} | `{shown}` | `{rule}` | {status} |")
    (PEERS / "measured.md").write_text("\n".join(lines) + "\n")
