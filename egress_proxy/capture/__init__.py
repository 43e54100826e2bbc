"""Owns how a container's traffic comes to the proxy: namespaces, steering, and who holds what."""
