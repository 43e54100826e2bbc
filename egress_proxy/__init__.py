"""Carries every byte that leaves a container. Knows neither models nor commands."""
