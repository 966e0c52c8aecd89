"""What a fleet knows of its egresses: who rests, what was asked today, and what mail hosts replied."""
