"""How it is run and what is where: README.md."""
