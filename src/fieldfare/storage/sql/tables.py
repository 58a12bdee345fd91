"""The tables of the registry, and how those of an older format become today's.

``versions`` is the history: a row a put, found by its revision. The change that ends a version writes its
own revision (`closed_revision`) and whether it was a removal into that row, so the history as of any earlier
revision is read by leaving out later closings. Where the log's first partition ended at either change
(`valid_from`, `valid_to`) is what a log of an older format is stamped by. ``subscriptions`` is what stands
now; `valid_from` and `further`, a list, say where delivery begins in the first and in further partitions;
`delivery` holds the settings that were set, as JSON, `cost` what the filter costs, `start` where one began
that asked for the past, `unused_s` for how many seconds nobody has used one that expires. ``pasts`` has a row
for each that began in the past: its first filter, the revision that this got, and where it began; `matched`
says that its past is matched as far as it goes.
``spaces`` has in `quotas` those that were set for it, as JSON, and in `key` what stands for it in all other
tables; none is the name itself. `encryption` is what was said of one that is encrypted, as JSON.
``gone_spaces`` holds those that were deleted, so that no key is used twice; `finished` says that nothing is
left of it.
``cursors`` has a row a partition; `attempts` is up to where messages were given, and of those not given once
how often. ``letters`` are messages that were given up; `again` says that one is to be given all the same.
``counters`` holds the last revision and number given out, up to which
revision history was purged, and the greatest known end of each partition.
"""

from __future__ import annotations

import sqlalchemy as sa

FORMAT = 6
REVISION, NUMBER, PURGED, FORMAT_COUNTER = "revision", "number", "purged", "format"

metadata = sa.MetaData()
counters = sa.Table(
    "counters",
    metadata,
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("value", sa.BigInteger, nullable=False),
)
spaces = sa.Table(
    "spaces",
    metadata,
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("quotas", sa.Text),
    sa.Column("key", sa.String),
    sa.Column("encryption", sa.Text),
)
gone_spaces = sa.Table(
    "gone_spaces",
    metadata,
    sa.Column("key", sa.String, primary_key=True),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("finished", sa.Boolean, nullable=False),
)
subscriptions = sa.Table(
    "subscriptions",
    metadata,
    sa.Column("space", sa.String, primary_key=True),
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("valid_from", sa.BigInteger, nullable=False),
    sa.Column("filter", sa.Text, nullable=False),
    sa.Column("dialect", sa.String, nullable=False),
    sa.Column("further", sa.LargeBinary),
    sa.Column("delivery", sa.Text),
    sa.Column("start", sa.Text),
    sa.Column("cost", sa.BigInteger, nullable=False, server_default="1"),
    sa.Column("unused_s", sa.BigInteger),
    sqlite_with_rowid=False,
)
versions = sa.Table(
    "versions",
    metadata,
    # SQLite takes only a column declared INTEGER for the row's own number; it has 64 bits there.
    sa.Column(
        "revision",
        sa.BigInteger().with_variant(sa.Integer, "sqlite"),
        primary_key=True,
        autoincrement=False,
    ),
    sa.Column("space", sa.String, nullable=False),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("valid_from", sa.BigInteger, nullable=False),
    sa.Column("valid_to", sa.BigInteger, nullable=False),
    sa.Column("closed_revision", sa.BigInteger),
    sa.Column("removed", sa.Boolean, nullable=False),
    sa.Column("changed_ms", sa.BigInteger, nullable=False),
    sa.Column("filter", sa.Text, nullable=False),
    sa.Column("dialect", sa.String, nullable=False),
    sa.Column("compiled", sa.LargeBinary, nullable=False),
)
_closed = versions.c.closed_revision.is_not(None)
sa.Index("closings", versions.c.closed_revision, sqlite_where=_closed, postgresql_where=_closed)
cursors = sa.Table(
    "cursors",
    metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("partition", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("offset", sa.BigInteger, nullable=False),
    sa.Column("index", sa.BigInteger, nullable=False),
    sa.Column("acked", sa.LargeBinary, nullable=False),
    sa.Column("attempts", sa.LargeBinary),
)
letters = sa.Table(
    "letters",
    metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("partition", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("offset", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("index", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("attempts", sa.BigInteger, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("dead_ms", sa.BigInteger, nullable=False),
    sa.Column("again", sa.Boolean, nullable=False),
    sqlite_with_rowid=False,
)
pasts = sa.Table(
    "pasts",
    metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("space", sa.String, nullable=False),
    sa.Column("start", sa.Text, nullable=False),
    sa.Column("filter", sa.Text, nullable=False),
    sa.Column("dialect", sa.String, nullable=False),
    sa.Column("compiled", sa.LargeBinary, nullable=False),
    sa.Column("matched", sa.Boolean, nullable=False),
)

_FROM_1 = (
    "ALTER TABLE subscriptions ADD COLUMN further BLOB",
    "ALTER TABLE cursors RENAME TO cursors_1",
    """CREATE TABLE cursors (number BIGINT NOT NULL, "partition" BIGINT NOT NULL, "offset" BIGINT NOT NULL,
        "index" BIGINT NOT NULL, acked BLOB NOT NULL, PRIMARY KEY (number, "partition"))""",
    'INSERT INTO cursors SELECT number, "partition", "offset", "index", acked FROM cursors_1',
    "DROP TABLE cursors_1",
    """INSERT INTO counters SELECT 'end 0', coalesce(max(at), 0) FROM (
        SELECT max(valid_from) AS at FROM versions
        UNION ALL SELECT max(valid_to) FROM versions WHERE closed_revision IS NOT NULL) AS ends""",
)

_FROM_2 = (
    "ALTER TABLE subscriptions ADD COLUMN delivery TEXT",
    "ALTER TABLE cursors ADD COLUMN attempts BLOB",
    sa.schema.CreateTable(letters),
)

_FROM_3 = (
    "ALTER TABLE subscriptions ADD COLUMN start TEXT",
    sa.schema.CreateTable(pasts),
    "ALTER TABLE spaces ADD COLUMN quotas TEXT",
    "ALTER TABLE spaces ADD COLUMN key TEXT",
    sa.schema.CreateTable(gone_spaces),
    "ALTER TABLE subscriptions ADD COLUMN cost BIGINT NOT NULL DEFAULT 1",
    # About what these filters cost; exactly, once they are put again.
    "UPDATE subscriptions SET cost = 1 + length(filter) / 20",
)

_FROM_4 = ("ALTER TABLE subscriptions ADD COLUMN unused_s BIGINT",)

_FROM_5 = (
    "ALTER TABLE spaces ADD COLUMN encryption TEXT",
    f"UPDATE counters SET value = {FORMAT} WHERE name = 'format'",
)


def end_counter(partition: int) -> str:
    """The name of the counter of a partition's known end."""
    return f"end {partition}"


def create(connection: sa.Connection) -> None:
    """In a transaction: make the tables."""
    metadata.create_all(connection)
    zeros = {REVISION: 0, NUMBER: 0, PURGED: 0, FORMAT_COUNTER: FORMAT}
    connection.execute(sa.insert(counters), [{"name": name, "value": value} for name, value in zeros.items()])


def upgrade(connection: sa.Connection, format: int) -> None:
    """In a transaction: make tables of an older format today's."""
    steps = (_FROM_1, _FROM_2, _FROM_3, _FROM_4, _FROM_5)[format - 1 :]
    for statement in [each for step in steps for each in step]:
        connection.execute(sa.text(statement) if isinstance(statement, str) else statement)
