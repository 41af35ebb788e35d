"""Who serves what, where a broker is one of several."""
