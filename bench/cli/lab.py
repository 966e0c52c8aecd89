"""`mailprobe lab`: a resolver and mail servers on loopback, to try everything against."""

import os
import sys
from pathlib import Path
from shutil import which

import click


@click.command()
@click.option(
    "--scenario",
    default="default",
    show_default=True,
    metavar="NAME",
    help="Which mail hosts and addresses: default, hostile, slow, many, strict, greylisting, "
    "particular, restless, waiting, distant, adverse, internet, sequences, dead or defences. See dev/lab.md.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of all random choices.")
@click.argument("command", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
def lab(scenario: str, seed: int, command: tuple[str, ...]) -> None:
    """Run a DNS-over-HTTPS resolver and mail servers on this machine alone.

    The first line of standard output is one JSON object: "env" holds the
    settings that point mailprobe at the lab, "addresses" what there is to
    verify, by outcome. Runs until it is stopped.

    With a COMMAND, nothing is printed: the lab runs it with these settings,
    and ends with its exit code.
    """
    from ..lab import SCENARIO_NAMES

    if scenario not in SCENARIO_NAMES:
        raise click.BadParameter(
            f"there is no scenario {scenario!r}; take one of: {', '.join(SCENARIO_NAMES)}",
            param_hint="--scenario",
        )
    # Last, the folder of this program: in a checkout, `mailprobe` is found nowhere else.
    places = (os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent))
    os.environ["PATH"] = os.pathsep.join(places)
    if command and which(command[0]) is None:
        raise click.UsageError(f"there is no command {command[0]!r} to run in the lab")
    try:
        from ..lab.run import run

        code = run(scenario, seed, command)
    except KeyboardInterrupt:  # before the lab minds its signals itself
        code = 130
    sys.exit(code)
