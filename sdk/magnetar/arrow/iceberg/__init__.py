"""Topics as Iceberg tables: each message exactly once, even across crashes. Guide:
docs/pipeline.md."""
