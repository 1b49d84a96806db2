"""What MSL has and C++ lacks, rewritten in place."""
