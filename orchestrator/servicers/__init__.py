"""Owns the translation between messages and the domain; decides nothing."""
