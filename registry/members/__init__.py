"""Members of groups whose sessions move between processes: where each is served, and who may take it over."""
