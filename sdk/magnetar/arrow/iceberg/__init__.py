"""Topics as Iceberg tables: each message once, whatever is killed. Guide: docs/pipeline.md."""
