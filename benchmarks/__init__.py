"""Speed and memory as ratios against a peer measured in the same run; run from a checkout, e.g. `make bench`."""
