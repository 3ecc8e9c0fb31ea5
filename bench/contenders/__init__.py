"""What takes part in ``python -m bench peers``: a module for each, and what they share."""
