"""Bodies into records: CloudEvents in any of their HTTP forms, checked event by event."""
