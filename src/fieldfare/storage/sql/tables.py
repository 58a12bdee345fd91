"""The tables of the registry, and the upgrade of tables of an older format.

``versions`` is the history: one row per put, identified by its revision. The change that ends a version
writes its own revision (`closed_revision`) and whether it was a removal (`removed`) into that row, so the
history as of any earlier revision is read by ignoring later closings. `valid_from` and `valid_to`, the ends
of the log's first partition at these two changes, give the stamps of a log of an older format.

``subscriptions`` holds the current subscriptions. `valid_from` and `further`, a list, are the offsets at
which delivery begins in the first and in the other partitions; `delivery` holds the explicit settings as
JSON, `cost` the filter's cost, `start` the start of a replay, `unused_s` for how many seconds an expiring
subscription has been unused. `owner` is NULL without one, `labels` has a line ``key=value`` for each label.
``labels`` finds subscriptions by these, with an empty key for the owner: it has a row for each label of
``subscriptions``, and is made from it again if it does not fit.

``pasts`` holds the replays, one row per subscription that began in the past: its first filter, that filter's
revision, and its start; `matched` says that all of its records are matched.

``spaces`` holds in `quotas` the quotas set for the space, as JSON, and in `key` the key that stands for it in
all other tables (NULL means its name). `encryption` holds the settings of an encrypted space, as JSON.
``gone_spaces`` holds the deleted spaces, so that no key is used twice; `finished` says that no subscription
of the space is left.

``cursors`` has one row per partition; `attempts` holds the position up to which messages were delivered, and
the number of deliveries of those that were not delivered exactly once. ``cursor_copies``
holds an earlier offset of each cursor, for cursors that a disk loses. ``letters`` holds the dead letters;
`again` marks one for redelivery.

A subscription whose space begins with ``>`` is the filter of another broker, and its id is the broker's
destination number and the filter's number there (see `storage.sql.brokers`). `destination` is that
destination number; other versions have none.

`checksum` covers the values with which a row was inserted, except those that change later (see `row_checks`);
`compiled_checksum` covers `compiled` alone. Rows of format 6 and earlier have no checksums, nor have rows of
``spaces`` and ``letters`` of format 7. Rows of ``counters`` and ``gone_spaces`` get theirs in the upgrade.
``counters`` holds the last assigned revision and subscription number, the revision up to which history was
purged, and the greatest known end of each partition.
"""

from __future__ import annotations

import sqlalchemy as sa


class StoredBytes(sa.LargeBinary):
    """Bytes as the driver returns them: SQLAlchemy would convert the number 1,000 to 1,000 zero bytes."""

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> None:
        return None


FORMAT = 11
REVISION, NUMBER, PURGED, FORMAT_COUNTER = "revision", "number", "purged", "format"

metadata = sa.MetaData()
counters = sa.Table(
    "counters",
    metadata,
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("value", sa.BigInteger, nullable=False),
    sa.Column("checksum", sa.BigInteger),
)
spaces = sa.Table(
    "spaces",
    metadata,
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("quotas", sa.Text),
    sa.Column("key", sa.String),
    sa.Column("encryption", sa.Text),
    sa.Column("checksum", sa.BigInteger),
)
gone_spaces = sa.Table(
    "gone_spaces",
    metadata,
    sa.Column("key", sa.String, primary_key=True),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("finished", sa.Boolean, nullable=False),
    sa.Column("checksum", sa.BigInteger),
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
    sa.Column("further", StoredBytes),
    sa.Column("delivery", sa.Text),
    sa.Column("start", sa.Text),
    sa.Column("cost", sa.BigInteger, nullable=False, server_default="1"),
    sa.Column("unused_s", sa.BigInteger),
    sa.Column("checksum", sa.BigInteger),
    sa.Column("owner", sa.Text),
    sa.Column("labels", sa.Text),
    sqlite_with_rowid=False,
)
NUMBERS = sa.Index("subscription_numbers", subscriptions.c.number)
"""Index of `subscriptions` by number. Any version of fieldfare may have written a database without it."""
labels = sa.Table(
    "labels",
    metadata,
    sa.Column("space", sa.String, primary_key=True),
    sa.Column("key", sa.String, primary_key=True),
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
    sa.Column("number", sa.BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
sa.Index("labels_by_value", labels.c.space, labels.c.key, labels.c.value, labels.c.id, labels.c.number)
versions = sa.Table(
    "versions",
    metadata,
    # In SQLite, only a column declared INTEGER is the rowid, which has 64 bits.
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
    sa.Column("compiled", StoredBytes, nullable=False),
    sa.Column("checksum", sa.BigInteger),
    sa.Column("compiled_checksum", sa.BigInteger),
    sa.Column("destination", sa.BigInteger),
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
    sa.Column("acked", StoredBytes, nullable=False),
    sa.Column("attempts", StoredBytes),
    sa.Column("checksum", sa.BigInteger),
)
cursor_copies = sa.Table(
    "cursor_copies",
    metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("partition", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("offset", sa.BigInteger, nullable=False),
    sa.Column("checksum", sa.BigInteger),
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
    sa.Column("checksum", sa.BigInteger),
    sqlite_with_rowid=False,
)
replays = sa.Table(
    "pasts",
    metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("space", sa.String, nullable=False),
    sa.Column("start", sa.Text, nullable=False),
    sa.Column("filter", sa.Text, nullable=False),
    sa.Column("dialect", sa.String, nullable=False),
    sa.Column("compiled", StoredBytes, nullable=False),
    sa.Column("matched", sa.Boolean, nullable=False),
    sa.Column("checksum", sa.BigInteger),
    sa.Column("compiled_checksum", sa.BigInteger),
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
    """CREATE TABLE letters (number BIGINT NOT NULL, "partition" BIGINT NOT NULL, "offset" BIGINT NOT NULL,
        "index" BIGINT NOT NULL, attempts BIGINT NOT NULL, reason TEXT NOT NULL, dead_ms BIGINT NOT NULL,
        again BOOLEAN NOT NULL, PRIMARY KEY (number, "partition", "offset", "index")) WITHOUT ROWID""",
)

_FROM_3 = (
    "ALTER TABLE subscriptions ADD COLUMN start TEXT",
    """CREATE TABLE pasts (number BIGINT NOT NULL PRIMARY KEY, revision BIGINT NOT NULL,
        space VARCHAR NOT NULL, start TEXT NOT NULL, filter TEXT NOT NULL, dialect VARCHAR NOT NULL,
        compiled BLOB NOT NULL, matched BOOLEAN NOT NULL)""",
    "ALTER TABLE spaces ADD COLUMN quotas TEXT",
    "ALTER TABLE spaces ADD COLUMN key TEXT",
    """CREATE TABLE gone_spaces ("key" VARCHAR NOT NULL, name VARCHAR NOT NULL, finished BOOLEAN NOT NULL,
        PRIMARY KEY ("key"))""",
    "ALTER TABLE subscriptions ADD COLUMN cost BIGINT NOT NULL DEFAULT 1",
    # An estimate of these filters' costs, replaced by the exact cost when they are put again.
    "UPDATE subscriptions SET cost = 1 + length(filter) / 20",
)

_FROM_4 = ("ALTER TABLE subscriptions ADD COLUMN unused_s BIGINT",)

_FROM_5 = ("ALTER TABLE spaces ADD COLUMN encryption TEXT",)

_FROM_6 = (
    "ALTER TABLE subscriptions ADD COLUMN checksum BIGINT",
    "ALTER TABLE versions ADD COLUMN checksum BIGINT",
    "ALTER TABLE versions ADD COLUMN compiled_checksum BIGINT",
    "ALTER TABLE cursors ADD COLUMN checksum BIGINT",
    "ALTER TABLE pasts ADD COLUMN checksum BIGINT",
    "ALTER TABLE pasts ADD COLUMN compiled_checksum BIGINT",
)

_FROM_7 = (
    "ALTER TABLE spaces ADD COLUMN checksum BIGINT",
    "ALTER TABLE letters ADD COLUMN checksum BIGINT",
)

_FROM_8 = (
    "ALTER TABLE gone_spaces ADD COLUMN checksum BIGINT",
    "ALTER TABLE counters ADD COLUMN checksum BIGINT",
    """CREATE TABLE cursor_copies (number BIGINT NOT NULL, "partition" BIGINT NOT NULL,
        "offset" BIGINT NOT NULL, checksum BIGINT, PRIMARY KEY (number, "partition"))""",
)

_FROM_9 = ("ALTER TABLE versions ADD COLUMN destination BIGINT",)

_FROM_10 = (
    "ALTER TABLE subscriptions ADD COLUMN owner TEXT",
    "ALTER TABLE subscriptions ADD COLUMN labels TEXT",
    """CREATE TABLE labels (space VARCHAR NOT NULL, "key" VARCHAR NOT NULL, id VARCHAR NOT NULL,
        value TEXT NOT NULL, number BIGINT NOT NULL, PRIMARY KEY (space, "key", id)) WITHOUT ROWID""",
    'CREATE INDEX labels_by_value ON labels (space, "key", value, id, number)',
    f"UPDATE counters SET value = {FORMAT}, checksum = NULL WHERE name = 'format'",
)


def end_counter(partition: int) -> str:
    """Return the name of the counter of a partition's known end."""
    return f"end {partition}"


def is_end_counter(name: object) -> bool:
    """Return whether a name is that of a counter of a partition's known end."""
    return isinstance(name, str) and name.startswith("end ")


def create(connection: sa.Connection) -> None:
    """Create the tables, in the caller's transaction; the counters get their checksums later."""
    metadata.create_all(connection)
    zeros = {REVISION: 0, NUMBER: 0, PURGED: 0, FORMAT_COUNTER: FORMAT}
    connection.execute(sa.insert(counters), [{"name": name, "value": value} for name, value in zeros.items()])


def has_numbers(connection: sa.Connection) -> bool:
    """Return whether the database has the index `NUMBERS`."""
    indexes = sa.inspect(connection).get_indexes(subscriptions.name)
    return NUMBERS.name in {index["name"] for index in indexes}


def columns_of(connection: sa.Connection, table: str) -> set[str]:
    """Return the names of a table's columns in the database."""
    return {column["name"] for column in sa.inspect(connection).get_columns(table)}


def upgrade(connection: sa.Connection, format: int) -> None:
    """Upgrade tables of an older format to the current one, in the caller's transaction.

    The rows of ``counters`` and ``gone_spaces`` get their checksums later.
    """
    steps = (
        *(_FROM_1, _FROM_2, _FROM_3, _FROM_4, _FROM_5),
        *(_FROM_6, _FROM_7, _FROM_8, _FROM_9, _FROM_10),
    )[format - 1 :]
    for statement in [each for step in steps for each in step]:
        connection.execute(sa.text(statement))
