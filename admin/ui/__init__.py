"""``streamlease ui``: a web page that shows spaces, groups, streams and hosts as they are, live."""
