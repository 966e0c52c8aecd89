"""What mail hosts tolerate: records, allocation and commands, and the part of the store."""
