"""The push consumer: listeners, the queues it holds, and how each kind of listener is served."""
