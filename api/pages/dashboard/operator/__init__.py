"""What only the operator of the service sees and does in the dashboard."""
