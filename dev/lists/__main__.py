"""`python -m dev.lists`: makes the lists, their package, and the key that signs it."""

import os
import sys
import tempfile
from pathlib import Path

import click

from dev.lists.building import build as build_lists
from dev.lists.packing import KEY_VARIABLE, new_key, pack, read_key
from dev.lists.sources import BuildFailed, gather
from dev.lists.upstreams import BadUpstream
from mailprobe.engine.lists.lists import DATA

FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)


@click.group()
def main() -> None:
    """Make the lists of domains and their data package."""


@main.command()
@click.argument("sources", nargs=-1, metavar="[SOURCE]...")
@click.option(
    "--into", "folder", type=FOLDER, default=DATA, show_default="engine/data", help="Lists' folder."
)
@click.option("--dry-run", is_flag=True, help="Print what would change, and change nothing.")
@click.option("--report", type=FILE, help="Write every change with its reason to this file (TSV).")
@click.option(
    "--accept",
    multiple=True,
    metavar="NAME",
    help="Believe the unusual length of this package or list. Repeatable.",
)
def build(
    sources: tuple[str, ...],
    folder: Path,
    dry_run: bool,
    report: Path | None,
    accept: tuple[str, ...],
) -> None:
    """Make the lists anew from their upstreams. Prints what changed and why.

    A SOURCE is the URL or the path of an upstream's archive, or a folder of archives.
    Without any, pip and npm download the newest ones.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="mailprobe-lists-") as scratch:
            archives = Path(scratch)
            errors = gather(sources, archives)
            whole = build_lists(
                archives,
                errors,
                folder,
                dry_run=dry_run,
                report=report,
                accepted=frozenset(accept),
            )
    except BadUpstream as error:
        words = " ".join(str(error).split())
        raise BuildFailed(f"{words}. Nothing was changed.") from error
    except ValueError as error:  # a hand-kept list is not UTF-8 or TOML
        words = " ".join(str(error).split())
        raise BuildFailed(
            f"a list in {folder} cannot be read: {words}. Nothing was changed."
        ) from error
    except OSError as error:
        raise BuildFailed(f"{error.filename or folder}: {error.strerror}") from error
    if not whole:
        sys.exit(1)


@main.command("pack")
@click.argument("output", type=FILE)
@click.option(
    "--from", "folder", type=FOLDER, default=DATA, show_default="engine/data", help="Lists' folder."
)
def pack_(output: Path, folder: Path) -> None:
    """Write the signed package of the lists. LISTS_SIGNING_KEY has the private key."""
    try:
        key = read_key(os.environ[KEY_VARIABLE])
    except KeyError:
        raise click.UsageError(
            f"set {KEY_VARIABLE} to what `python -m dev.lists new-key FILE` wrote"
        ) from None
    except ValueError:
        raise click.UsageError(f"{KEY_VARIABLE} is no Ed25519 private key in base64") from None
    octets = pack(folder, key)
    output.write_bytes(octets)
    click.echo(f"{output}: {len(octets):,} octets")


@main.command("new-key")
@click.argument("file", type=FILE)
def new_key_(file: Path) -> None:
    """Make a key pair: the private key into FILE, the public one to standard output."""
    try:
        click.echo(new_key(file))
    except FileExistsError:
        raise click.UsageError(f"{file} exists; a key is never overwritten") from None


if __name__ == "__main__":
    main()
