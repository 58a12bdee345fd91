"""Webhooks: messages that are sent to the subscriber's address, instead of being fetched.

addresses   which addresses may be called, and connections to no others
streams     connections of which answers are read bit by bit
messages    events as HTTP requests: structured, binary, batch
signing     what a receiver knows them by
sender      one request, the handshake before it, and what the answer means
pushes      a session of the delivery's machine for each subscription that has an address
"""
