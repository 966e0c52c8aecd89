"""The operations of the API: a module for each subject, with its types, handlers, refusals and texts."""
