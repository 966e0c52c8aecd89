"""The suite `truth`, in parts: worlds of the lab, lists in virtual time, lists that are killed."""
