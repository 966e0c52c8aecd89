"""What `mailprobe doctor` checks, as data: the command shows it, and so can a page."""
