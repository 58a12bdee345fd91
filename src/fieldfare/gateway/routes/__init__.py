"""What clients ask for, path by path: requests in, answers out."""
