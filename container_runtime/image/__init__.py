"""The images that containers run from, and how they are made where none can be pulled."""
