"""Who may have memory and time of this process: overload control, and the budget of bodies."""
