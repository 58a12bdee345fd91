"""BlueDove, Li et al. 2011, in simulated time: what section IV measures, at the paper's scale."""
