"""SMTP replies: normalised text, and the rules that give each reply its meaning."""
