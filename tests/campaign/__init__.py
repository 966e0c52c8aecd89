"""A campaign of faults against the service and the lab as processes, from seeds: `make campaign`.

Clients send without a pause and a witness keeps what they asked for and what was acknowledged. A
round inflicts one fault of `faults.FAULTS`, restarts the service, lets everything end, and compares
the database with the witness. `mutants` proves that the tests and the campaign find what they are for.
"""
