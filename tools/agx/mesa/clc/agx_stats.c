/*
 * agx_stats FILE.spv: compiles the kernels of a SPIR-V module for Apple's G13 (M1) and prints a line of JSON each: the
 * compiler's own statistics, and the code, with what its uniforms have to hold. AGX_MESA_DEBUG=shaders prints the
 * instructions before it.
 *
 * The order of the passes is that of Mesa's asahi_clc, which compiles its driver's own kernels.
 * SPDX-License-Identifier: MIT
 */
#include "asahi/compiler/agx_compile.h"
#include "asahi/compiler/agx_nir.h"
#include "compiler/glsl_types.h"
#include "compiler/spirv/nir_spirv.h"
#include "util/u_debug.h"
#include "nir.h"
#include "nir_builder.h"
#include "nir_precompiled.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct spirv_to_nir_options spirv_options = {
   .environment = NIR_SPIRV_OPENCL,
   .shared_addr_format = nir_address_format_62bit_generic,
   .global_addr_format = nir_address_format_62bit_generic,
   .temp_addr_format = nir_address_format_62bit_generic,
   .constant_addr_format = nir_address_format_64bit_global,
   .create_library = true,
};

static void
optimize(nir_shader *nir)
{
   bool progress;
   do {
      progress = false;
      NIR_PASS(progress, nir, nir_split_var_copies);
      NIR_PASS(progress, nir, nir_split_struct_vars, nir_var_function_temp);
      NIR_PASS(progress, nir, nir_lower_var_copies);
      NIR_PASS(progress, nir, nir_lower_vars_to_ssa);
      NIR_PASS(progress, nir, nir_copy_prop);
      NIR_PASS(progress, nir, nir_opt_remove_phis);
      NIR_PASS(progress, nir, nir_lower_phis_to_scalar, true);
      NIR_PASS(progress, nir, nir_opt_dce);
      NIR_PASS(progress, nir, nir_opt_dead_cf);
      NIR_PASS(progress, nir, nir_opt_cse);
      NIR_PASS(progress, nir, nir_opt_peephole_select, 64, false, true);
      NIR_PASS(progress, nir, nir_opt_phi_precision);
      NIR_PASS(progress, nir, nir_opt_algebraic);
      NIR_PASS(progress, nir, nir_opt_constant_folding);
      NIR_PASS(progress, nir, nir_opt_deref);
      NIR_PASS(progress, nir, nir_opt_copy_prop_vars);
      NIR_PASS(progress, nir, nir_opt_undef);
      NIR_PASS(progress, nir, nir_lower_undef_to_zero);
      NIR_PASS(progress, nir, nir_opt_shrink_vectors, true);
      NIR_PASS(progress, nir, nir_opt_loop_unroll);
   } while (progress);
}

static nir_shader *
library(const uint32_t *words, size_t count)
{
   nir_shader *nir = spirv_to_nir(words, count, NULL, 0, MESA_SHADER_KERNEL, "library", &spirv_options,
                                  &agx_nir_options);
   if (!nir)
      return NULL;
   nir_fixup_is_exported(nir);
   nir->info.workgroup_size_variable = true; /* a library has none: it would be lowered to 0 */
   NIR_PASS(_, nir, nir_lower_system_values);
   NIR_PASS(_, nir, nir_lower_calls_to_builtins);
   nir_lower_compute_system_values_options cs = {.global_id_is_32bit = true};
   NIR_PASS(_, nir, nir_lower_compute_system_values, &cs);
   NIR_PASS(_, nir, nir_lower_variable_initializers, nir_var_function_temp);
   NIR_PASS(_, nir, nir_lower_returns);
   NIR_PASS(_, nir, nir_inline_functions);
   nir_remove_non_exported(nir);
   NIR_PASS(_, nir, nir_copy_prop);
   NIR_PASS(_, nir, nir_opt_deref);
   NIR_PASS(_, nir, nir_lower_variable_initializers, ~nir_var_mem_constant);
   NIR_PASS(_, nir, nir_lower_vec3_to_vec4,
            nir_var_shader_temp | nir_var_function_temp | nir_var_mem_shared | nir_var_mem_global |
               nir_var_mem_constant);
   NIR_PASS(_, nir, nir_lower_vars_to_explicit_types,
            nir_var_uniform | nir_var_shader_temp | nir_var_function_temp | nir_var_mem_shared | nir_var_mem_global,
            glsl_get_cl_type_size_align);
   optimize(nir);
   NIR_PASS(_, nir, nir_remove_dead_variables, nir_var_all, NULL);
   NIR_PASS(_, nir, nir_lower_vars_to_explicit_types,
            nir_var_shader_temp | nir_var_function_temp | nir_var_mem_shared | nir_var_mem_global |
               nir_var_mem_constant,
            glsl_get_cl_type_size_align);
   if (nir->constant_data_size) { /* tables in constant memory */
      nir->constant_data = rzalloc_size(nir, nir->constant_data_size);
      nir_gather_explicit_io_initializers(nir, nir->constant_data, nir->constant_data_size, nir_var_mem_constant);
   }
   NIR_PASS(_, nir, nir_lower_memcpy);
   NIR_PASS(_, nir, nir_lower_explicit_io, nir_var_mem_constant, nir_address_format_64bit_global);
   NIR_PASS(_, nir, nir_lower_explicit_io, nir_var_uniform, nir_address_format_32bit_offset_as_64bit);
   NIR_PASS(_, nir, nir_lower_convert_alu_types, NULL);
   NIR_PASS(_, nir, nir_opt_if, 0);
   NIR_PASS(_, nir, nir_opt_idiv_const, 16);
   optimize(nir);
   return nir;
}

static nir_def *
load_argument(nir_builder *b, unsigned components, unsigned bits, unsigned offset_B)
{
   return nir_load_preamble(b, components, bits, .base = offset_B / 2);
}

/* Tables in constant memory lie where the four half registers at `data` point. */
static bool
lower_constant_base(nir_builder *b, nir_intrinsic_instr *intr, void *data)
{
   if (intr->intrinsic != nir_intrinsic_load_constant_base_ptr)
      return false;
   b->cursor = nir_before_instr(&intr->instr);
   nir_def_replace(&intr->def, nir_load_preamble(b, 1, 64, .base = *(unsigned *)data));
   return true;
}

/* Arrays that stayed in memory have addresses of 64 bits here, where Mesa's own kernels have 32. */
static bool
narrow_scratch(nir_builder *b, nir_intrinsic_instr *intr, void *data)
{
   bool store = intr->intrinsic == nir_intrinsic_store_scratch;
   if (!store && intr->intrinsic != nir_intrinsic_load_scratch)
      return false;
   b->cursor = nir_before_instr(&intr->instr);
   nir_src_rewrite(&intr->src[store], nir_u2u32(b, intr->src[store].ssa));
   return true;
}

static char stats[512];

static void
keep_stats(void *data, unsigned *id, enum util_debug_type type, const char *format, va_list args)
{
   vsnprintf(stats, sizeof stats, format, args);
}

static void
print_bytes(const char *name, const void *bytes, size_t size)
{
   printf("\"%s\": \"", name);
   for (size_t i = 0; i < size; ++i)
      printf("%02x", ((const uint8_t *)bytes)[i]);
   printf("\", ");
}

/* Uniform registers are counted in halves of 16 bits. A preamble at -1: there is none. */
static void
print_code(const nir_shader *nir, const struct agx_shader_part *part, const nir_function *kernel,
           const struct nir_precomp_layout *layout, unsigned table)
{
   const struct agx_shader_info *info = &part->info;
   print_bytes("code", part->binary, info->binary_size);
   print_bytes("tables", nir->constant_data, nir->constant_data_size);
   print_bytes("constants", (const uint8_t *)part->binary + info->rodata.offset, info->rodata.size_16 * 2);
   printf("\"main\": %u, \"preamble\": %d, \"tables_at\": %u, \"constants_at\": %u, \"arguments_at\": [",
          info->main_offset, info->has_preamble ? (int)info->preamble_offset : -1, table, info->rodata.base_uniform);
   for (unsigned i = 0; i < kernel->num_params; ++i)
      printf("%s%u", i ? ", " : "", layout->offset_B[i] / 2);
   printf("]}\n");
}

static void
compile_kernel(nir_shader *nir, nir_function *kernel)
{
   for (unsigned i = 0; i < kernel->num_params; ++i)
      kernel->params[i].name = "argument"; /* else __n at a name's end would make variants */
   struct nir_precomp_opts options = {.arg_align_B = 2};
   struct nir_precomp_layout layout = nir_precomp_derive_layout(&options, kernel);
   nir_shader *s = nir_precompiled_build_variant(kernel, 0, &agx_nir_options, &options, load_argument);
   agx_link_libagx(s, nir);
   NIR_PASS(_, s, nir_lower_vars_to_explicit_types, nir_var_mem_shared, glsl_get_cl_type_size_align);
   NIR_PASS(_, s, nir_lower_explicit_io, nir_var_mem_shared, nir_address_format_62bit_generic);
   /* Generic addresses have offsets of 32 bits without a sign: p[-1] would be wrong. */
   NIR_PASS(_, s, nir_opt_deref);
   NIR_PASS(_, s, nir_lower_explicit_io, nir_var_mem_global, nir_address_format_64bit_global);
   s->info.internal = false;
   bool progress;
   do {
      progress = false;
      NIR_PASS(progress, s, nir_opt_loop);
   } while (progress);
   unsigned table = ALIGN_POT(layout.size_B / 2, 4);
   NIR_PASS(_, s, nir_shader_intrinsics_pass, lower_constant_base, nir_metadata_control_flow, &table);
   agx_preprocess_nir(s, NULL);
   NIR_PASS(_, s, nir_shader_intrinsics_pass, narrow_scratch, nir_metadata_control_flow, NULL);

   struct agx_shader_key key = {
      .dev = {.soft_fault = !getenv("AGX_STATS_HARD_FAULT"), .needs_g13x_coherency = u_tristate_make(false)},
      .reserved_preamble = table + 4,
      .libagx = nir,
      .has_scratch = true,
      .promote_constants = true,
   };
   struct util_debug_callback debug = {.debug_message = keep_stats};
   struct agx_shader_part out;
   stats[0] = 0;
   agx_compile_shader_nir(s, &key, &debug, &out);

   const char *colon = strchr(stats, ':');
   printf("{\"stats\": \"%s\", ", colon ? colon + 2 : "");
   print_code(nir, &out, kernel, &layout, table);
   free(out.binary);
   ralloc_free(s);
}

int
main(int argc, char **argv)
{
   if (argc != 2) {
      fprintf(stderr, "usage: %s FILE.spv\n", argv[0]);
      return 2;
   }
   FILE *file = fopen(argv[1], "rb");
   if (!file) {
      perror(argv[1]);
      return 1;
   }
   fseek(file, 0, SEEK_END);
   size_t size = ftell(file);
   rewind(file);
   uint32_t *words = malloc(size);
   if (fread(words, 1, size, file) != size)
      return 1;
   fclose(file);

   glsl_type_singleton_init_or_ref();
   nir_shader *nir = library(words, size / 4);
   if (!nir)
      return 1;
   nir_foreach_entrypoint(kernel, nir) {
      compile_kernel(nir, kernel);
   }
   glsl_type_singleton_decref();
   return 0;
}
