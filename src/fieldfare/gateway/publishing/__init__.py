"""Convert request bodies to log records: CloudEvents in any HTTP form, validated event by event."""
