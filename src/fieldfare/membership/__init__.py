"""Membership: which matchers exist and what each owns, without a central server.

Li et al. 2011 (BlueDove), section III.C. Machines without I/O: ``handle(message, now)`` returns effects; the
runtime sends, waits and reads snapshots.
"""

from fieldfare.membership.dispatcher import Dispatcher, DispatcherSettings
from fieldfare.membership.gossip import Gossip
from fieldfare.membership.holdings import Holdings, stored_of
from fieldfare.membership.matcher import MatcherMember
from fieldfare.membership.table import MatcherRow, MatcherTable, State, attribute_space
from fieldfare.membership.transitions import MembershipSettings

__all__ = [
    "Dispatcher",
    "DispatcherSettings",
    "Gossip",
    "Holdings",
    "MatcherMember",
    "MatcherRow",
    "MatcherTable",
    "MembershipSettings",
    "State",
    "attribute_space",
    "stored_of",
]
