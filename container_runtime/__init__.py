"""Runs commands in isolated containers. Knows neither models nor policies."""
