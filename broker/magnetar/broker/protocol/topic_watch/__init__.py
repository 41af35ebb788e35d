"""Topic list watchers: clients that subscribe to a pattern are told of topics that come and go."""
