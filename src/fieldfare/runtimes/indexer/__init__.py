"""The indexer's process: registry changes in; deltas, snapshots and manifests out, to the index store."""
