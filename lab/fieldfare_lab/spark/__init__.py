"""A service's log matched batch by batch at several matchers, and what is learnt from each."""
