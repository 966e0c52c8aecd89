"""Entry point of the console script; Ctrl-C works from here on (see mailprobe.api.interrupts)."""

from .interrupts import end_at_interrupts

end_at_interrupts()


def main() -> None:
    from .cli import main as command

    try:
        command()
    finally:
        end_at_interrupts()  # the interpreter's shutdown would print a traceback too
