"""What the gateway does besides answering."""
