// Stands in for the generated bindings of Mesa's device library: helpers of textures, which no kernel here has.
#pragma once
#include "compiler/nir/nir_builder.h"

static inline nir_def* libagx_no_textures(void) { unreachable("kernels have no textures"); }

#define libagx_buffer_image_offset(...) libagx_no_textures()
#define libagx_buffer_texel_address(...) libagx_no_textures()
#define libagx_buffer_texture_offset(...) libagx_no_textures()
#define libagx_image_texel_address(...) libagx_no_textures()
#define libagx_lower_txf_robustness(...) libagx_no_textures()
#define libagx_texture_is_rgb32(...) libagx_no_textures()
#define libagx_texture_levels(...) libagx_no_textures()
#define libagx_texture_load_rgb32(...) libagx_no_textures()
#define libagx_texture_samples(...) libagx_no_textures()
#define libagx_txs(...) libagx_no_textures()
