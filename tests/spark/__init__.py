"""A package, and so is ``tests``: fixtures with the scope "package" end with its last test."""
