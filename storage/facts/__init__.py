"""Facts that the engines of a fleet share: their records, commands, and the part of the store."""
