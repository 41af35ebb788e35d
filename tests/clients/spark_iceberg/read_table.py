"""Rows of an Iceberg table, read by Spark through the table's own catalog: one JSON line each.

It runs in an environment that has PySpark and nothing of this project: Iceberg's runtime is there
for older releases of Spark than the project installs.

usage: read_table.py CATALOG_FILE WAREHOUSE TABLE COLUMNS ORDER JAR...
"""

import base64
import json
import sys

from pyspark.sql import SparkSession

CATALOG = "default"
"""The name that stands in the catalog's own table."""


def main() -> None:
    file, warehouse, table, columns, order, *jars = sys.argv[1:]
    settings = {
        "spark.jars": ",".join(jars),
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
        f"spark.sql.catalog.{CATALOG}.type": "jdbc",
        f"spark.sql.catalog.{CATALOG}.uri": f"jdbc:sqlite:{file}",
        f"spark.sql.catalog.{CATALOG}.warehouse": warehouse,
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    names = columns.split(",")
    found = spark.table(f"{CATALOG}.{table}").orderBy(*order.split(",")).select(*names)
    for row in found.toLocalIterator():
        cells = [
            base64.b64encode(cell).decode() if isinstance(cell, bytes | bytearray) else cell
            for cell in row
        ]
        sys.stdout.write(json.dumps(cells) + "\n")
    spark.stop()


if __name__ == "__main__":
    main()
