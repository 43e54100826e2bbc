"""Translates between the wire and the domain."""
