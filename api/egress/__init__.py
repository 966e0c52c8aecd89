"""The egresses of an installation: their file, and what the processes of a fleet share."""
