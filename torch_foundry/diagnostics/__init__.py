"""What users look into a model and a machine with: doctor, compare, profile, perplexity, tune."""
