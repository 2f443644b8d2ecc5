"""The pull consumer: an application that asks for messages, and the queues that are read ahead for it."""
