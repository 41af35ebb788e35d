"""The HTTP server: its sockets, its bounds, and when its application is made."""
