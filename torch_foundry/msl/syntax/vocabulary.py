"""The words of the Metal Shading Language that the front end knows by name."""

from __future__ import annotations

ADDRESS_SPACES = frozenset({"device", "constant", "thread", "threadgroup"})

# attributes of kernel parameters that the executor fills in; the prelude has a tag type of the same name for each
BUILTINS = frozenset(
    {
        "thread_position_in_grid",
        "thread_position_in_threadgroup",
        "thread_index_in_threadgroup",
        "thread_index_in_simdgroup",
        "thread_index_in_quadgroup",
        "threadgroup_position_in_grid",
        "threads_per_grid",
        "threads_per_threadgroup",
        "threadgroups_per_grid",
        "threads_per_simdgroup",
        "thread_execution_width",
        "simdgroup_index_in_threadgroup",
        "simdgroups_per_threadgroup",
        "quadgroup_index_in_threadgroup",
        "quadgroups_per_threadgroup",
        "dispatch_threads_per_threadgroup",
        "dispatch_simdgroups_per_threadgroup",
        "dispatch_quadgroups_per_threadgroup",
        "grid_origin",
        "grid_size",
    }
)

# constructs without a counterpart on the host, by the word that gives them away
UNSUPPORTED_TYPES = {
    **dict.fromkeys(
        [
            f"{kind}{shape}"
            for kind in ("texture", "depth")
            for shape in ("1d", "1d_array", "2d", "2d_array", "2d_ms", "2d_ms_array", "3d", "cube", "cube_array")
        ]
        + ["texture_buffer"],
        "textures",
    ),
    "sampler": "samplers",
    "imageblock": "imageblocks",
    "visible_function_table": "function tables",
    "intersection_function_table": "ray tracing",
    "acceleration_structure": "ray tracing",
    "instance_acceleration_structure": "ray tracing",
    "primitive_acceleration_structure": "ray tracing",
    "intersector": "ray tracing",
    "intersection_query": "ray tracing",
    "render_command": "indirect command buffers",
    "compute_command": "indirect command buffers",
    "command_buffer": "indirect command buffers",
    "simdgroup_async_copy": "asynchronous copies",
    "simdgroup_event": "asynchronous copies",
}
UNSUPPORTED_STAGES = {
    "vertex": "vertex functions",
    "fragment": "fragment functions",
    "mesh": "mesh functions",
    "object": "object functions",
    "intersection": "intersection functions",
}
UNSUPPORTED_ATTRIBUTES = {
    "texture": "textures",
    "sampler": "samplers",
    "stage_in": "stage-in arguments",
    "imageblock_data": "imageblocks",
    "payload": "mesh and ray payloads",
    "id": "argument buffers",
}
UNSUPPORTED_HEADERS = {
    "metal_raytracing": "ray tracing",
    "metal_cooperative_tensor": "Metal 4 tensors",
}

INTEGERS = frozenset(
    {"char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "size_t", "ptrdiff_t"}
    | {f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
SCALARS = ("bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "half", "float", "bfloat")
VECTOR_TYPES = frozenset(
    [f"{t}{n}" for t in SCALARS for n in (2, 3, 4)]
    + [f"packed_{t}{n}" for t in SCALARS for n in (2, 3, 4)]
    + [f"{t}{c}x{r}" for t in ("half", "float") for c in (2, 3, 4) for r in (2, 3, 4)]
)
