"""Consumers that pop: the broker keeps what each message is waiting for, message by message."""
