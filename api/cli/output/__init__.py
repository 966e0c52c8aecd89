"""Output of commands: reports, progress, traffic lights."""
