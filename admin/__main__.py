"""``python -m streamlease.admin``: the command, for a Python that has no script folder on PATH."""

from streamlease.admin.cli import main

if __name__ == "__main__":
    main()
