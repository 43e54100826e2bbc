"""Decides on actions that need approval. Knows nothing of how they are executed."""
