"""Sending: producers, transactions, request and reply, and what a message passes on its way to a broker."""
