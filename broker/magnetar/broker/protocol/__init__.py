"""The door of the binary protocol: sockets, connections, commands."""
