"""What a data pipeline (Spark's source and sink) uses of the client beside its public names: this, and nothing else."""
