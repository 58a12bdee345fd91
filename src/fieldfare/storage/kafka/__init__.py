"""Event log and match log as Kafka topics (extra ``fieldfare[kafka]``): see docs/decisions/kafka.md."""
