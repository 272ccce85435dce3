#include "c_entry.hpp"

#include <cerrno>
#include <new>
#include <span>

#include "row_store.hpp"

int engram_read_now(const engram_reader* reader, const std::int64_t* ids, std::size_t n, void* weight_out,
                    void* scale_out) {
  auto* store = static_cast<engram::RowStore*>(reader->store);
  const engram::RowPlanes out{static_cast<std::byte*>(weight_out), static_cast<std::byte*>(scale_out)};
  try {
    return store->read_now(reader->table, std::span(ids, n), out);
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  }
}

void engram_run_host_call(void* host_call) {
  const auto* call = static_cast<const engram_host_call*>(host_call);
  const int result = engram_read_now(&call->reader, call->ids, call->n, call->weight_out, call->scale_out);
  // The first error stays until whoever launched the work has seen it.
  if (*call->status == 0) *call->status = result;
}
