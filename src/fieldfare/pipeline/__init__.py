"""The data path, in reading order: pure functions over Arrow batches, and one machine, the indexer.

    records ─▶ access_point ─▶ dispatch ─▶ consignments ─▶ matcher ─▶ pairs ─▶ exit_point ─▶ a block's lists
               └──────────── AP ──────┘                    └─ M ──┘            └── EP ──┘
                                 ▲ slices                    ▲ slices
    registry changes ─▶ indexer ─▶ manifest

``manifest``      what matching must use: for each space its slices, and how they were cut
``slices``        the same opened: the index of each slice
``access_point``  AP: records to columns of events, space by space
``dispatch``      AP: which matcher gets which events, for which of its slices
``matcher``       M: events against the slices that they visit
``exit_point``    EP: what matchers found of the same events, put together
``match_batch``   AP, M and EP in one function, where nothing has to travel
``placing``       subscriptions to the parts of slices
``indexer``       keeps manifests up to date
``suspects``      finds the record that makes matching fail

One slice at one matcher is the usual case: dispatch and EP have nothing to do then. With several matchers the
same functions run in different tasks (``runtimes/spark/spread/``).
"""
