"""The data path, in reading order: pure functions over Arrow batches, and one state machine, the indexer.

    records ─▶ access_point ─▶ dispatch ─▶ consignments ─▶ matcher ─▶ pairs ─▶ exit_point ─▶ a block's lists
               └──────────── AP ──────┘                    └─ M ──┘            └── EP ──┘
                                 ▲ slices                    ▲ slices
    registry changes ─▶ indexer ─▶ manifest

``manifest``      the index files of every space: its slices and its partitioning
``slices``        an opened manifest: the index of each slice
``access_point``  AP: converts records to columns of events, space by space
``dispatch``      AP: selects the events for each matcher and the slices that they visit
``matcher``       M: matches events against the slices that they visit
``exit_point``    EP: merges the matches that the matchers found
``match_batch``   AP, M and EP in one function, for use in one process
``placing``       assigns subscriptions to the parts of slices
``indexer``       keeps manifests up to date
``suspects``      finds the record that makes matching fail

The usual case is one slice on one matcher, in which dispatch and EP do nothing. With several matchers the
same functions run in different tasks (``runtimes/spark/distributed/``).
"""
