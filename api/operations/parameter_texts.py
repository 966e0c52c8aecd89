"""Texts of parameters that an operation has in common with its tools and a command.

Imports nothing, so that the --help of a command reads them without the operations.
"""

LIST_SEARCH = "Only lists with this text in their name, or whose id begins with it."
ONLY_LIGHTS = "Only the rows of these lights, such as green,yellow."
FORMULAS = "Cells of CSV that begin like a formula: guard puts an apostrophe before them."
COLUMN = "The column of the addresses: its name, or its number from 1."
SHEET = "The sheet of a workbook: its title, or its number from 1."
RECHECK = "Ask again later after temporary failures."
STRICT_CLOCKS = "Give slow hosts no more time when asking again: 3 s, not 60 s."
PATIENCE_S = "How many seconds each address may wait until its mail host takes more; 0: not at all."
NO_SMTP = "Ask no mail host."
WITHOUT_PORT = "Works without port 25."
KEY_LABEL = "The name of the key, for people."


def when(value: str, text: str) -> str:
    """What a parameter does if it has this value: `1: ask no mail host.`"""
    return f"{value}: {text[:1].lower()}{text[1:]}"
