"""Lists made to do harm (`mailprobe.bench.lab.hostile_files`), sent to all that reads lists."""
