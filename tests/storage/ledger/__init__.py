"""An independent model of metering, jobs and the outbox, in dictionaries, without SQL."""
