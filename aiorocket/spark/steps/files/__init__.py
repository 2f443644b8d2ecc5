"""What lies on disk: the manifest of an archive, Parquet files, Delta and Iceberg tables over them, claims."""
