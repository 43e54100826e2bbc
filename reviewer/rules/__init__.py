"""Owns the rules stage: verdicts on actions from their text alone; no I/O, no gRPC."""
