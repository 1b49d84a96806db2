"""The names of MSL's standard library: what a shader finds in `metal` and without it.

The preludes declare nothing else there (tests/msl/test_prelude_names.py). A name belongs here only if the Metal Shading
Language Specification or Apple's headers have it: what they lack, a shader may declare itself.
"""

from __future__ import annotations

from .vocabulary import SCALARS


def _names(text: str) -> list[str]:
    return text.split()


_TYPES = frozenset(
    [f"{packed}{t}{n}" for packed in ("", "packed_") for t in SCALARS for n in (2, 3, 4)]
    + [f"{t}{c}x{r}" for t in ("half", "float", "bfloat") for c in (2, 3, 4) for r in (2, 3, 4)]
)
_SCALAR_NAMES = frozenset({"uchar", "ushort", "uint", "ulong", "half", "bfloat"})

# What is visible without `metal::`, beside the standard C names of integers
GLOBAL_NAMES = _TYPES | _SCALAR_NAMES | {"as_type", "metal", "packed_vec", "simd", "std", "vec"}

_MATH = _names(
    """
    abs acos acosh asin asinh atan atan2 atanh ceil clamp copysign cos cosh cospi cross determinant distance
    distance_squared divide dot exp exp10 exp2 fabs faceforward fdim floor fma fmax fmax3 fmedian3 fmin fmin3 fmod
    fract frexp ilogb ldexp length length_squared log log10 log2 max max3 median3 min min3 mix modf nextafter
    normalize pow powr reflect refract rint round rsqrt saturate sign sin sincos sinh sinpi smoothstep sqrt step
    tan tanh tanpi transpose trunc all any isfinite isinf isnan isnormal isordered isunordered select signbit
    """
)
_INTEGER = _names(
    """
    absdiff addsat clz ctz extract_bits hadd insert_bits mad24 madhi madsat mul24 mulhi popcount reverse_bits rhadd
    rotate subsat
    """
)
_PACKING = [
    name
    for scalar in ("float", "half")
    for format_ in ("unorm4x8", "snorm4x8", "unorm2x16", "snorm2x16")
    for name in (f"pack_{scalar}_to_{format_}", f"unpack_{format_}_to_{scalar}")
]
_ATOMIC = _names(
    """
    atomic atomic_bool atomic_compare_exchange_weak_explicit atomic_exchange_explicit atomic_fetch_add_explicit
    atomic_fetch_and_explicit atomic_fetch_max_explicit atomic_fetch_min_explicit atomic_fetch_or_explicit
    atomic_fetch_sub_explicit atomic_fetch_xor_explicit atomic_float atomic_int atomic_load_explicit
    atomic_max_explicit atomic_min_explicit atomic_store_explicit atomic_thread_fence atomic_uint atomic_ulong
    """
)
_COMPUTE = _names(
    """
    mem_flags memory_order memory_order_acq_rel memory_order_acquire memory_order_relaxed memory_order_release
    memory_order_seq_cst simdgroup_barrier thread_scope thread_scope_device thread_scope_simdgroup
    thread_scope_thread thread_scope_threadgroup threadgroup_barrier
    """
)
_LANES = _names(
    """
    active_threads_mask all and any ballot broadcast broadcast_first is_first is_helper_thread max min or
    prefix_exclusive_product prefix_exclusive_sum prefix_inclusive_product prefix_inclusive_sum product shuffle
    shuffle_and_fill_down shuffle_and_fill_up shuffle_down shuffle_rotate_down shuffle_rotate_up shuffle_up
    shuffle_xor sum vote xor
    """
)
_MATRIX = _names(
    """
    make_diagonal_simdgroup_matrix make_filled_simdgroup_matrix matrix simdgroup_bfloat8x8 simdgroup_float8x8
    simdgroup_half8x8 simdgroup_load simdgroup_matrix simdgroup_multiply simdgroup_multiply_accumulate
    simdgroup_store
    """
)
_TRAITS = _names(
    """
    add_const add_cv add_lvalue_reference add_pointer add_rvalue_reference add_volatile common_type conditional
    conjunction decay disjunction enable_if extent is_arithmetic is_array is_assignable is_base_of is_class
    is_const is_constructible is_convertible is_copy_assignable is_copy_constructible is_default_constructible
    is_enum is_floating_point is_function is_fundamental is_integral is_lvalue_reference is_pod is_pointer
    is_reference is_rvalue_reference is_same is_scalar is_signed is_standard_layout is_trivial
    is_trivially_copyable is_union is_unsigned is_void is_volatile make_scalar make_signed make_unsigned negation
    rank remove_addrspace remove_all_extents remove_const remove_cv remove_extent remove_pointer remove_reference
    remove_volatile underlying_type
    """
)
_OTHERS = _names(
    """
    _conjunction _disjunction _negation alignment_of array bool_constant declval false_type fast integral_constant
    make_uniform numeric_limits os_log os_log_default precise ptrdiff_t size_t true_type uniform
    """
)
# Internals that libraries call
_BUILTINS = [
    *(f"__metal_{name}" for name in (*_MATH, *_INTEGER)),
    *(f"__metal_{group}_{name}" for group in ("simd", "quad") for name in _LANES),
    "__metal_get_simdgroup_size",
    "__metal_get_thread_index_in_simdgroup",
]

METAL_NAMES = frozenset(
    [*_MATH, *_INTEGER, *_PACKING, *_ATOMIC, *_COMPUTE, *_MATRIX, *_OTHERS, *_BUILTINS]
    + [f"{group}_{name}" for group in ("simd", "quad") for name in _LANES]
    + [f"{trait}{suffix}" for trait in _TRAITS for suffix in ("", "_t", "_v")]
) | (GLOBAL_NAMES - {"metal", "simd", "std"})
