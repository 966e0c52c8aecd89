"""The manual page, made from the commands themselves (man-pages(7), groff_man(7)).

python -m mailprobe.api.cli.shell.manual > dev/mailprobe.1
"""

import re
from collections.abc import Iterator

import click

from ...settings import GROUPS
from .. import main
from .examples import EXAMPLES, exit_codes_of

INTRODUCTION = """\
Verifies email addresses without sending mail: syntax, throwaway domains, the domain's mail hosts,
and the mailbox by an SMTP conversation that ends before any message. Addresses are verified on this
machine, or by a service that \\fBmailprobe serve\\fR runs."""
FILES = (
    ("mailprobe.toml", "settings in the working directory, or where MAILPROBE_CONFIG says"),
    ("data/mailprobe.db", "the database of the service, unless MAILPROBE_DATABASE names another"),
)


def manual() -> str:
    """Return the page mailprobe(1) in roff."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield '.TH MAILPROBE 1 "" "mailprobe" "User Commands"'
    yield from (".SH NAME", r"mailprobe \- verify email addresses without sending mail")
    yield from (
        ".SH SYNOPSIS",
        r".B mailprobe",
        r".I COMMAND",
        r"[\fIOPTIONS\fR] [\fIARGUMENTS\fR]",
    )
    yield from (".SH DESCRIPTION", INTRODUCTION)
    yield ".SH COMMANDS"
    root = click.Context(main, info_name="mailprobe", **main.context_settings)
    for name in main.list_commands(root):
        command = main.get_command(root, name)
        assert command is not None
        yield from _command(command, name, root)
    yield from (".SH EXIT STATUS", _escaped(exit_codes_of("")))
    yield ".SH ENVIRONMENT"
    for group in GROUPS:
        yield f".SS {_escaped(group.title)}"
        for row in group.rows:
            text = f"{row.type.takes}. Default: {row.shown_default}."
            yield from (".TP", rf"\fB{row.variable}\fR", _escaped(text))
    yield ".SH FILES"
    for path, text in FILES:
        yield from (".TP", rf"\fI{_escaped(path)}\fR", _escaped(text))


def _command(command: click.Command, words: str, parent: click.Context) -> Iterator[str]:
    context = click.Context(command, info_name=words.rpartition(" ")[2], parent=parent)
    arguments = " ".join(command.collect_usage_pieces(context))
    yield f'.SS "mailprobe {words} {_escaped(arguments)}"'
    for paragraph in re.split(r"\n\s*\n", _dedented(command.help or "")):
        yield from (".PP", _escaped(" ".join(paragraph.split())))
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            yield from (".TP", rf"\fB{_escaped(record[0])}\fR", _escaped(record[1]))
    yield from (".PP", "Examples:", ".PP", ".nf")
    yield from (f"  {_escaped(line)}" for line in EXAMPLES[words])
    yield from (".fi", ".PP", _escaped(f"Exit codes: {exit_codes_of(words)}"))
    if isinstance(command, click.Group):
        for name, inner in sorted(command.commands.items()):
            yield from _command(inner, f"{words} {name}", context)


def _dedented(text: str) -> str:
    return text.replace("\b", "").strip()


def _escaped(text: str) -> str:
    """Escape what roff takes for a command: backslashes, hyphens, and a leading dot or quote."""
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{text}" if text.startswith((".", "'")) else text


if __name__ == "__main__":
    click.echo(manual(), nl=False)
