"""Times of ops and models, with parity in the same run. See RESULTS.md for what came out."""
