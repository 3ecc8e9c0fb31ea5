"""The archives of spaces: `streamlease archive ...`, and the options that give a space one."""
