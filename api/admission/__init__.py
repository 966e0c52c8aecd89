"""Memory and time of this process for requests: overload control, and the budget of bodies."""
