"""`mailprobe score`: how right a cleaned list was, by the bounces of what was sent to it."""
