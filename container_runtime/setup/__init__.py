"""Makes a machine ready to run containers: an engine that answers, and the images.

From a shell: `python -m container_runtime.setup`. In a program: `engine.ensure_engine` and
`images.ensure_image`.
"""
