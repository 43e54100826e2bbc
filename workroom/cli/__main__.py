"""`workroom`, and `python -m workroom.cli`: an interruption while it loads is one, too."""

import sys


def main() -> None:
    """The program."""
    try:
        from workroom.cli.main import main as program

        program()
    except KeyboardInterrupt:
        sys.exit(130)  # 128 + SIGINT, as shells have it


if __name__ == "__main__":
    main()
