"""`python -m triptych` is the `triptych` command."""

from triptych.cli import main

if __name__ == "__main__":
    main()
