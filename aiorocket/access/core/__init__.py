"""Decisions of access control, pure."""
