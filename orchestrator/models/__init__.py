"""Owns the conversation with a model server; knows nothing of sessions, tools or storage."""
