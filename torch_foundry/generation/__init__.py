"""The runtime of `generate()`, engines and a caller's own loop: captured decode steps, and what takes them.

- `step_graph`: a model's step over memory at fixed addresses (`StepInputs`: growing caches in `step_state`, an engine's
  pages), captured once and replayed. The model keeps all of its steps: `models.graph_cache`.
- `runner`: single steps and verified draft tokens of one generation; `captured_steps`: what it leaves
  for the next one.
- `loop`, `speculation`: generating until `stopping` says so, with draft tokens or without.
- `drafting`, `draft_length`: where draft tokens come from, and how many there are, here and in an engine.
  `draft_model`: one sequence's draft model; an engine's, over pages, is with the engine.
"""
