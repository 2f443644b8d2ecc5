"""The analysing steps as drivers, what they read and the tables they write."""
