"""Webhooks: messages pushed to the subscriber's URL instead of being pulled.

addresses   which IP addresses may be called; connections to no others
streams     connections with bounded reads of a response
messages    events as HTTP requests: structured, binary, batch
signing     signatures by which a receiver authenticates requests
sender      one request, the handshake before it, and what the response means
gate        admission to an address and its server: circuit breakers, rate, permission
pushes      a delivery session for each subscription with a push URL
"""
