"""Workroom gives an AI agent a computer. This package holds what its services and users share."""

__version__ = "0.1.0"
