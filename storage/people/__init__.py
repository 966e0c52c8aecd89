"""People of accounts: their roles, their sign-ins to the dashboard, and the links that begin one."""
