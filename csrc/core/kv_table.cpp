#include "core/kv_table.h"

#include "attention/kv_formats.h"
#include "attention/kv_store.h"

namespace foundry {

const std::vector<KvFormat>& kv_formats() {
#define FOUNDRY_KV_ENTRY(policy, name, bits, symmetric) {#name, c10::kByte, bits, symmetric, #policy, #policy "Out"},
  static const std::vector<KvFormat> formats = {FOUNDRY_KV_FORMATS(FOUNDRY_KV_ENTRY)};
  return formats;
}

int64_t KvFormat::row_bytes(int64_t columns) const {
  return packed_row_bytes(static_cast<uint32_t>(columns), static_cast<uint32_t>(bits));
}

int64_t KvFormat::columns(int64_t bytes) const {
  for (int64_t columns = 16; columns <= 512; columns += 16)
    if (row_bytes(columns) == bytes) return columns;
  return 0;
}

} // namespace foundry
