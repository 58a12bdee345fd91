"""Which partitioning serves best: searched by what forwarding would make of it."""
