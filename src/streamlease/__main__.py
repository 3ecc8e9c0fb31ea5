"""``python -m streamlease``: the command ``streamlease``, also where its folder is not on PATH."""

from streamlease.admin.cli import main

if __name__ == "__main__":
    main()
