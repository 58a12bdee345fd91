"""The `sql` dialect: what follows WHERE in SQL, over the attributes of an event."""
