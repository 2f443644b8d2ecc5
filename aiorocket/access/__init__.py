"""Access control for brokers and name servers: who asks, and what they may."""
