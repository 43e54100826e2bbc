"""`python -m workroom.cli` is `workroom`."""

from workroom.cli.main import main

if __name__ == "__main__":
    main()
