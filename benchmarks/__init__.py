"""Times of ops and models, with a check of the results in the same run. RESULTS.md is written from records/."""
