"""Work that the store keeps until it is done: one worker and one back-off rule for every queue."""
