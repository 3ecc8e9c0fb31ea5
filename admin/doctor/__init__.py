"""``streamlease doctor``: what could be wrong, each as one line with its remedy."""
