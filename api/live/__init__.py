"""The live socket: addresses in, results out in completion order, as long as the client likes."""
