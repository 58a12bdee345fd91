"""Membership: which matchers exist and what each owns, without a central server.

Li et al. 2011 (BlueDove), section III.C. Machines without I/O: ``handle(message, now)`` returns effects; the
runtime sends, waits and reads snapshots.
"""

from fieldfare_lab.membership.dispatcher import Dispatcher, DispatcherSettings
from fieldfare_lab.membership.gossip import Gossip
from fieldfare_lab.membership.holdings import Holdings, stored_of
from fieldfare_lab.membership.matcher import MatcherMember
from fieldfare_lab.membership.table import MatcherRow, MatcherTable, State, attribute_space
from fieldfare_lab.membership.transitions import MembershipSettings

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
