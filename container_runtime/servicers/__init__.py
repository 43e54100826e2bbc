"""Translates between messages and the domain; decides nothing."""
