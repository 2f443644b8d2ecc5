"""What a client decides: pure functions and plain state. Nothing here waits, reads a clock, draws a number or logs."""
