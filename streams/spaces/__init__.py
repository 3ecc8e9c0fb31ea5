"""Topic spaces: definitions, generations, and what of them is kept."""
