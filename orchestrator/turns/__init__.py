"""Owns how a turn comes to its end, step by step; each step is on disk before the next begins."""
