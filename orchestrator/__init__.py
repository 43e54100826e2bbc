"""Runs conversations with agents: sessions, turns, the loop and the models it calls."""
