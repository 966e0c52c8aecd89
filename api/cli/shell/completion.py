"""`mailprobe completion`: prints the script with which a shell completes commands and options.

The script is click's. It calls `mailprobe` for each completion, so that it stays right
after an update.
"""

import click

VARIABLE = "_MAILPROBE_COMPLETE"  # click's name for a program named mailprobe
SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script for SHELL: bash, zsh or fish.

    It completes commands, options, their choices and file names.
    """
    from click.shell_completion import get_completion_class

    root = click.get_current_context().find_root().command
    script = get_completion_class(shell)
    assert script is not None  # click has all of SHELLS
    # Not `source()`: for bash it runs the installed bash, which may not be the reader's.
    template = script(root, {}, "mailprobe", VARIABLE)
    click.echo(template.source_template % template.source_vars())
