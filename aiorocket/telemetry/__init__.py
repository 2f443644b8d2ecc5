"""What a client does, for those who watch it; each module needs its library, so none is imported here."""
