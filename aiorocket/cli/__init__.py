"""The command ``aiorocket``: one file per command, loaded only when that command runs."""
