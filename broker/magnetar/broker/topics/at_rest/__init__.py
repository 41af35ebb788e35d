"""Topics that nobody uses: upkeep reaches them without a client that has them loaded."""
