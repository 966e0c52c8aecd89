"""`mailprobe doctor`: checks what verification needs, and prints what to do about each failure."""

import os
import sys
from collections.abc import Sequence

import click

from mailprobe.engine.egress import ONE_EGRESS

from ..doctor.checks import Check
from ..doctor.named_sender import missing_sender
from ..terminal import plain


@click.command()
@click.option("--egress", "names", multiple=True, metavar="NAME", help="Only this egress.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def doctor(context: click.Context, names: Sequence[str], as_json: bool) -> None:
    """Check that this machine can verify addresses, with advice for each problem.

    With a file of egresses each of them is checked. The exit code is 1 if a check failed.
    """
    from ..doctor.egresses import examine_egresses, examine_machine
    from ..errors import print_error
    from ..settings import Settings
    from .runner import run

    settings = Settings.read(os.environ)
    if names or settings.engine.egresses is not ONE_EGRESS:
        from .egress.commands import check_names, read_with_file

        check_names(read_with_file(), names)
        checks = run(lambda: examine_egresses(settings, names))
    else:
        if (notice := missing_sender(settings.engine)) is not None:
            print_error(notice)
        checks = run(lambda: examine_machine(settings))
    if settings.oidc_issuer is not None:
        from ..sign_in.check import examine_sign_in

        checks.append(run(lambda: examine_sign_in(settings)))
    failed = sum(check.status == "failed" for check in checks)
    if as_json:
        import msgspec

        result = {"ok": not failed, "checks": [record_of(check) for check in checks]}
        click.echo(msgspec.json.encode(result))
    else:
        print_table(checks)
    if failed:
        print_error(f"{failed} of {len(checks)} checks failed")
        context.exit(1)


def record_of(check: Check) -> dict[str, str | None]:
    """For programs: the questions are for people."""
    return {
        "check": check.check, "status": check.status, "found": check.found, "advice": check.advice
    }  # fmt: skip


STYLES = {"ok": "green", "failed": "red", "skipped": "yellow"}


def print_table(checks: list[Check]) -> None:
    """Print a table, each check with its question below; escapes of other hosts are shown."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from .output.report import console_on

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    table.add_column("check", overflow="fold", min_width=12)
    table.add_column("result", no_wrap=True)
    table.add_column("found, and what to do", overflow="fold", min_width=20)
    for check in checks:
        reported = Text(plain(check.found))
        if check.advice:
            reported.append(f"\n→ {plain(check.advice)}", style="bold")
        status = Text(check.status, style=STYLES[check.status])
        name = Text(plain(check.check)).append(f"\n{check.question}", style="dim")
        table.add_row(name, status, reported)
    console_on(sys.stdout).print(table)
