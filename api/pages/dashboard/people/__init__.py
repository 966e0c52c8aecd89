"""The pages by which people sign in, and the page of an account's people."""
