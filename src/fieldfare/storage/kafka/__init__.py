"""Event log and match log as topics of Kafka (extra ``fieldfare[kafka]``): see docs/decisions/kafka.md."""
