"""Owns what survives a restart; knows no services, models or commands."""
