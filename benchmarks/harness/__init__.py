"""What all benchmarks share: clocks, the machine's own bandwidth, records, tables and pictures."""
