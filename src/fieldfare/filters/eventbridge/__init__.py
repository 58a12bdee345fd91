"""The ``eventbridge`` dialect: Amazon EventBridge event patterns."""
