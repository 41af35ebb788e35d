"""The server side of the binary protocol: sockets, connections, commands."""
