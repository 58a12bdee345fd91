"""fieldfare: content-based publish/subscribe for very many standing filters."""

__version__ = "0.1.0"
