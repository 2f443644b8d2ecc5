"""``python -m aiorocket``: the command line, for whoever has the package but not its script on the path."""

from aiorocket.cli.main import main

if __name__ == "__main__":
    main()
