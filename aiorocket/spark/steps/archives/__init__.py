"""A topic on disk and back: archive, compact, verify, restore."""
