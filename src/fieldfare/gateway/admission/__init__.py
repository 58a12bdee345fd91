"""Who may ask, and how much: before a route sees a request, and while it reads one."""
