"""What all processes of a store share about themselves: pauses, and the machines that run."""
