"""`mailprobe lab`: a resolver and mail servers on loopback, to try everything against."""

import sys

import click


@click.command()
@click.option(
    "--scenario",
    default="default",
    show_default=True,
    metavar="NAME",
    help="Which mail hosts and addresses: default, hostile, slow, many, strict, greylisting, "
    "particular, restless, waiting, adverse, internet, sequences, dead or defences. See docs/lab.md.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of all random choices.")
def lab(scenario: str, seed: int) -> None:
    """Run a DNS-over-HTTPS resolver and mail servers on this machine alone.

    The first line of standard output is one JSON object: "env" holds the
    settings that point mailprobe at the lab, "addresses" what there is to
    verify, by outcome. Runs until it is stopped.
    """
    from mailprobe.bench.lab import SCENARIO_NAMES

    if scenario not in SCENARIO_NAMES:
        raise click.BadParameter(
            f"there is no scenario {scenario!r}; take one of: {', '.join(SCENARIO_NAMES)}",
            param_hint="--scenario",
        )
    try:
        from mailprobe.bench.lab.run import run

        code = run(scenario, seed)
    except KeyboardInterrupt:  # before the lab minds its signals itself
        code = 130
    sys.exit(code)
