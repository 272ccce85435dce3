// Reads all Engram layers of one model step from CUDA host nodes: no GIL, no CUDA call.
//
// After a step that waited for the drive the node of the first layer starts every layer's reads, so that cold
// rows share the drive's queue; each layer's node returns once its own rows are there. Waiting nodes do parts of
// the work themselves.
//
// Rows in memory take well under a microsecond each, waking a thread takes several on the node's own thread and
// tens until it runs. So while no row had to wait for the drive, a node reads a layer of few rows alone and in
// one call; of many rows the threads help, with that layer's alone: the first layer has the least slack, and a
// core that reads for the second is one less for the first. A part that waits wakes all threads, for the step's
// other layers and for all of the next step.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace sgl_ext {

// engram_read_now of engram/core/c_entry.hpp, handed over as an address: the two modules share no symbols.
using ReadNow = int (*)(const void* reader, const std::int64_t* ids, std::size_t n, void* weight_out,
                        void* scale_out);

struct LayerRead {
  const void* reader = nullptr;
  const std::int64_t* ids = nullptr;  // looked at when the node runs: graphs are replayed with new ids
  std::size_t num_ids = 0;
  std::byte* weight = nullptr;
  std::byte* scale = nullptr;
  std::int64_t* status = nullptr;  // 0 or the step's first -errno; travels with the rows
};

class Step;

class ReaderPool {
 public:
  ReaderPool(ReadNow read_now, std::size_t weight_bytes, std::size_t scale_bytes, unsigned num_threads);
  ~ReaderPool();

  const ReadNow read_now;
  const std::size_t weight_bytes;
  const std::size_t scale_bytes;

 private:
  friend class Step;
  struct Part {
    Step* step;
    std::size_t layer;
    std::size_t first;
    std::size_t count;
  };

  void push(std::span<const Part> parts);
  void wake_all();
  bool run_one(Step* step, std::size_t layer);
  void run_forever();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Part> parts_;
  bool stopping_ = false;
  std::atomic<bool> waited_{true};  // a part of this or the last step waited for the drive
  std::vector<std::thread> threads_;
};

class Step {
 public:
  // Rows of a layer that its node reads alone, when all seem to be in memory: some tens of microseconds.
  static constexpr std::size_t kAloneIds = 512;

  // part_ids: ids a part reads at once; parts of a layer run side by side.
  Step(std::shared_ptr<ReaderPool> pool, std::vector<LayerRead> layers, std::size_t part_ids);

  void start();
  void wait(std::size_t layer);

  // What cudaLaunchHostFunc gets: run_node with node(layer).
  void* node(std::size_t layer) { return &nodes_[layer]; }
  static void run_node(void* node);

 private:
  friend class ReaderPool;
  struct Node {
    Step* step;
    std::size_t layer;
  };

  void push_up_to(std::size_t end);
  void share_drive();
  void run(const ReaderPool::Part& part);

  const std::shared_ptr<ReaderPool> pool_;
  const std::vector<LayerRead> layers_;
  std::vector<ReaderPool::Part> parts_;
  std::vector<std::size_t> first_part_;  // of each layer, and the end
  bool splits_ = true;                   // no layer of many rows is one part
  std::size_t pushed_ = 0;               // layers whose parts the pool has had in this run
  std::unique_ptr<std::atomic<std::size_t>[]> left_;
  std::vector<Node> nodes_;
};

}  // namespace sgl_ext
