"""The command line: starts and stops an installation, and shows what its services answer."""
