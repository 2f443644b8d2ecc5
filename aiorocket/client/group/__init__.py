"""What every member of a consumer group does: rebalance, offsets, where to start, checks before joining."""
