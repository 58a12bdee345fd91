"""The ``sql`` dialect: SQL conditions, as after WHERE, over the attributes of an event."""
