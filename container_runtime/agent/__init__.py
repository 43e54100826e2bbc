"""The resident supervisor: runs inside every container as its PID 1.

Standard library only, few imports (memory and start time), nothing from outside this package.
"""
