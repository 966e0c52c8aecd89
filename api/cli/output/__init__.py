"""What commands print: reports, progress, traffic lights."""
