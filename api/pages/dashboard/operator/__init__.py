"""Pages of the dashboard for the operator of the service alone."""
