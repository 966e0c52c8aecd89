"""`mailprobe score`: compares a cleaned list with the bounces that came. Nothing leaves the machine."""

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import CommandError

if TYPE_CHECKING:
    from ..listfile.opening import ReadOptions
    from .scoring.scores import CleanedRow

FILE = click.Path(path_type=Path)


@click.command()
@click.argument("cleaned", type=FILE)
@click.argument("bounces", type=FILE)
@click.option(
    "--sent",
    metavar="LIGHTS",
    default="green,yellow",
    help="The lights that mail was sent to. Default: green,yellow.",
)
@click.option("--column", metavar="NAME", help="Column of the addresses in BOUNCES.")
@click.option(
    "--verbose", is_flag=True, help="Print the tables by reason, provider and domain, too."
)
@click.option("--json", "wants_json", is_flag=True, help="Print one JSON object.")
def score(
    cleaned: Path,
    bounces: Path,
    sent: str,
    column: str | None,
    verbose: bool,
    wants_json: bool,
) -> None:
    """Show how right a cleaned list was.

    CLEANED is an output of `mailprobe clean`. BOUNCES is an mbox, a mail (.eml), a
    folder of mails such as a Maildir, or a list of bounced addresses that a mail service
    exports. One screen says how many addresses without a mailbox got mail, and compares
    what each address was called with what happened, with 95 % confidence intervals.
    """
    from ..listfile.opening import ReadOptions
    from ..results.lights import lights_of
    from .scoring.bounces import read_bounces
    from .scoring.output import as_json, print_score
    from .scoring.scores import score as compare

    lights = lights_of(sent, "--sent")
    found = read_bounces(bounces, ReadOptions(column))
    made = compare(_cleaned_rows(cleaned, ReadOptions()), found.kinds, frozenset(lights))
    if wants_json:
        click.echo(json.dumps(as_json(made, found), indent=2))
    else:
        from .output.report import console_on

        print_score(console_on(sys.stdout), made, found, is_whole=verbose)
    if not made.all.sent:
        raise CommandError("no row of the list has a light that mail was sent to; see --sent")
    if found.kinds and len(found.kinds) == made.foreign:
        raise CommandError("none of the bounced addresses is in the list")


def _cleaned_rows(cleaned: Path, reading: "ReadOptions") -> "Iterator[CleanedRow]":
    """The rows of a cleaned list. Raises BadList."""
    from mailprobe.engine.smtp.operators import load_operators

    from ..listfile.survey import BadList
    from ..reader.own_list import rows_of
    from ..terminal import plain
    from .scoring.scores import CleanedRow

    operators = load_operators()
    providers: dict[str, str] = {}
    with closing(rows_of(cleaned, reading)) as parts:
        for row in chain.from_iterable(part.rows for part in parts):
            results = row.results
            if not results:
                if row.address:
                    name = plain(str(cleaned))
                    raise BadList(
                        f"{name} has no results, or not all of them; it takes an output of mailprobe "
                        "clean with all its columns: without --short and --columns"
                    )
                continue
            host = results["mx_host"]
            if host not in providers:
                operator = operators.find(host)
                providers[host] = operator.id if operator else ".".join(host.split(".")[-2:])
            if results["email"]:
                yield CleanedRow(
                    results["email"], results["status"], results.get("reason", ""), providers[host],
                    results["light"],
                )  # fmt: skip
