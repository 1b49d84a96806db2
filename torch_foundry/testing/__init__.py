"""References, tolerances and checks of the ops: for the tests, the doctor and the benchmarks."""
