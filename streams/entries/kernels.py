"""The functions of ``pyarrow.compute`` by name, loaded with the first that is called.

To load that module makes some hundred Python functions, which takes as long as all of ``pyarrow`` without it.
A process that leads, relays or asks for offsets decodes nothing, and never calls one.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # Python looks here for what a module may have, such as `__path__`
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    import pyarrow.compute

    function = globals()[name] = getattr(pyarrow.compute, name)
    return function
