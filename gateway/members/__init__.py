"""Members of groups over HTTP: join, fetch, commit, fail, leave, at any gateway."""
