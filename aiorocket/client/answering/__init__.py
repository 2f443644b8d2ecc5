"""What brokers ask of a client, and the answers."""
