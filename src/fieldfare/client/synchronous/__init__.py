"""The client for ordinary programs, which may have threads.

All but ``concurrency`` is made from ``client/asynchronous`` by ``make client``: change it there.
"""
