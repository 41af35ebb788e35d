"""`python -m tests.bench`: see bench.py."""

from tests.bench.bench import main

main()
