"""Admission: authentication, authorization and limits, before a route sees a request and while it is read."""
