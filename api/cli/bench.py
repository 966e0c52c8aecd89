"""mailprobe bench: run the suites, print their figures, keep them as JSON."""

import subprocess
import sys

import click


@click.command()
@click.argument("suites", nargs=-1, metavar="[SUITE]...")
def bench(suites: tuple[str, ...]) -> None:
    """Run the benchmark suites (all of them unless named) and print their figures.

    Exit code 1 where a figure misses what is promised.
    """
    from bench.figures import Figure, promised, read_results, write_results
    from bench.suites import SUITES

    for name in suites:
        if name not in SUITES:
            raise click.UsageError(f"no suite {name!r}; there are: {', '.join(SUITES)}")
    kept = True
    for name in suites or tuple(SUITES):
        click.echo(f"\n{name}: {SUITES[name]}")
        done = subprocess.run(
            [sys.executable, "-m", "bench.suites", name],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            click.echo(f"mailprobe: suite {name} failed", err=True)
            sys.exit(1)
        *remarks, results = done.stdout.splitlines()
        for remark in remarks:
            click.echo(f"  {remark}")
        figures: list[Figure] = promised(name, read_results(results))
        for figure in figures:
            mark = "" if figure.kept else "  MISSED" if figure.missed else "  nearly"
            click.echo(
                f"  {figure.what:<44} {figure.value:>10,.2f} {figure.unit:<8} {figure.promise}{mark}"
            )
        write_results(name, figures)
        kept = kept and not any(figure.missed for figure in figures)
    sys.exit(0 if kept else 1)
