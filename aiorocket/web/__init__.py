"""aiorocket inside web applications; each module needs its framework, so none is imported here."""
