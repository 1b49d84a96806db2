// The family of a GPU: what its kernels are compiled for, and its model, as GPUs of one architecture differ in memory.
#pragma once

#include <string>
#include <string_view>

namespace foundry::cuda {

// "sm_90-h200" of "sm_90" and "NVIDIA H200". Lines of the tuning table for "sm_90" are for all models of it.
inline std::string family_of(std::string_view arch, std::string_view model) {
  constexpr std::string_view vendor = "NVIDIA ";
  if (model.starts_with(vendor)) model.remove_prefix(vendor.size());
  std::string family(arch);
  bool apart = true; // from the word before
  for (const char c : model) {
    const bool upper = c >= 'A' && c <= 'Z';
    const bool in_word = upper || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (in_word && apart) family += '-';
    if (in_word) family += upper ? static_cast<char>(c - 'A' + 'a') : c;
    apart = !in_word;
  }
  return family;
}

} // namespace foundry::cuda
