"""Many addresses at once: the engine, the scheduler, and the stream of answers."""
