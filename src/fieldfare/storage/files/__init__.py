"""Match log and index store in folders of files that are written once, synced and renamed."""
