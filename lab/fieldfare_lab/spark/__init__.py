"""A service's log matched batch by batch at several matchers, with learning from each batch."""
