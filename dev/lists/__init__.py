"""Makes the lists and their data package. Part of the repository, not of the product.

`build` makes the lists of `engine/data` anew from upstream packages. `pack` makes them a
signed archive, which `mailprobe lists update` installs. They are two commands so that the
signing key is never beside what strangers have written.
"""
