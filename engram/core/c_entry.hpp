// C entry points for callers without Python: CUDA host nodes, other languages. They never take the GIL.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// One table of an open store. Valid until the store is closed.
struct engram_reader {
  void* store;  // engram::RowStore
  std::uint32_t table;
};

// Copies n rows: row i to weight_out + i * weight_bytes and scale_out + i * scale_bytes. Blocks until all are
// there. 0, -ERANGE for an id that is not of this file, -errno of a failed read; the output is then garbage and
// must not be used. Any thread, also a CUDA host function's.
int engram_read_now(const engram_reader* reader, const std::int64_t* ids, std::size_t n, void* weight_out,
                    void* scale_out);

// The arguments of one read behind a single pointer, as cudaLaunchHostFunc wants it. The ids are looked at when
// the call runs, so a graph can be replayed with new ones in the same memory.
struct engram_host_call {
  engram_reader reader;
  const std::int64_t* ids;
  std::size_t n;
  void* weight_out;
  void* scale_out;
  std::int32_t* status;  // receives 0 or -errno; once it holds an error, later calls leave it
};

void engram_run_host_call(void* host_call);
}
