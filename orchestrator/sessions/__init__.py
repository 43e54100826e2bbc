"""Owns what callers do with sessions, and who hears of what happens in them."""
