"""The event log in one SQLite file, and connections to such files."""
