#include "step_reader.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace sgl_ext {
namespace {

// A part that took longer waited for the drive: between rows in memory, well under half a microsecond each, and
// one read from a drive.
constexpr std::chrono::nanoseconds kWaited = std::chrono::microseconds{30};
constexpr std::chrono::nanoseconds kWaitedPerRow{500};

}  // namespace

ReaderPool::ReaderPool(ReadNow read_now_entry, std::size_t weight, std::size_t scale, unsigned num_threads)
    : read_now(read_now_entry), weight_bytes(weight), scale_bytes(scale) {
  for (unsigned idx = 0; idx < num_threads; ++idx) threads_.emplace_back([this] { run_forever(); });
}

ReaderPool::~ReaderPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ReaderPool::push(std::span<const Part> parts) {
  {
    const std::lock_guard lock(mutex_);
    parts_.insert(parts_.end(), parts.begin(), parts.end());
  }
  // The pushing thread takes one part itself.
  if (parts.size() > threads_.size()) return wake_all();
  for (std::size_t idx = 1; idx < parts.size(); ++idx) wake_.notify_one();
}

void ReaderPool::wake_all() { wake_.notify_all(); }

// Runs one waiting part of this step, of the given layer first. False when none is waiting.
bool ReaderPool::run_one(Step* step, std::size_t layer) {
  Part part;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find_if(
        parts_, [&](const Part& candidate) { return candidate.step == step && candidate.layer == layer; });
    if (found == parts_.end()) return false;
    part = *found;
    parts_.erase(found);
  }
  part.step->run(part);
  return true;
}

void ReaderPool::run_forever() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !parts_.empty(); });
    if (stopping_) return;
    const Part part = parts_.front();
    parts_.pop_front();
    lock.unlock();
    part.step->run(part);
    lock.lock();
  }
}

Step::Step(std::shared_ptr<ReaderPool> pool, std::vector<LayerRead> layers, std::size_t part_ids)
    : pool_(std::move(pool)),
      layers_(std::move(layers)),
      left_(std::make_unique<std::atomic<std::size_t>[]>(layers_.size())) {
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    first_part_.push_back(parts_.size());
    for (std::size_t first = 0; first < layers_[layer].num_ids; first += part_ids)
      parts_.push_back({this, layer, first, std::min(part_ids, layers_[layer].num_ids - first)});
    nodes_.push_back({this, layer});
    // A part of a whole prompt's chunk: its layers are read side by side, whatever memory holds.
    splits_ = splits_ && (layers_[layer].num_ids <= kAloneIds || part_ids < layers_[layer].num_ids);
  }
  first_part_.push_back(parts_.size());
}

void Step::start() {
  const bool waited = pool_->waited_.exchange(false, std::memory_order_relaxed);
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    *layers_[layer].status = 0;
    left_[layer].store(first_part_[layer + 1] - first_part_[layer], std::memory_order_relaxed);
  }
  pushed_ = 0;
  if (waited || !splits_) push_up_to(layers_.size());
}

// Gives the pool the parts of all layers below `end` that it does not have yet.
void Step::push_up_to(std::size_t end) {
  if (pushed_ >= end) return;
  const std::size_t begin = first_part_[pushed_];
  pool_->push(std::span(parts_).subspan(begin, first_part_[end] - begin));
  pushed_ = end;
}

void Step::wait(std::size_t layer) {
  if (pushed_ <= layer && layers_[layer].num_ids <= kAloneIds) {
    run({this, layer, 0, layers_[layer].num_ids});
    left_[layer].store(0, std::memory_order_relaxed);
    pushed_ = layer + 1;
  } else {
    push_up_to(layer + 1);
    while (pool_->run_one(this, layer)) share_drive();
  }
  share_drive();
  // The last parts are a thread's and nearly done: sleeping costs more than they do.
  const auto until = std::chrono::steady_clock::now() + kWaited;
  while (left_[layer].load(std::memory_order_acquire) != 0 && std::chrono::steady_clock::now() < until)
    std::this_thread::yield();
  for (std::size_t left = left_[layer].load(std::memory_order_acquire); left != 0;
       left = left_[layer].load(std::memory_order_acquire))
    left_[layer].wait(left, std::memory_order_acquire);
}

// Where rows come from the drive after all, the other layers' reads need not wait for their nodes.
void Step::share_drive() {
  if (pool_->waited_.load(std::memory_order_relaxed)) push_up_to(layers_.size());
}

void Step::run(const ReaderPool::Part& part) {
  const LayerRead& layer = layers_[part.layer];
  const auto begin = std::chrono::steady_clock::now();
  const int result = pool_->read_now(layer.reader, layer.ids + part.first, part.count,
                                     layer.weight + part.first * pool_->weight_bytes,
                                     layer.scale + part.first * pool_->scale_bytes);
  if (std::chrono::steady_clock::now() - begin > kWaited + part.count * kWaitedPerRow &&
      !pool_->waited_.exchange(true, std::memory_order_relaxed))
    pool_->wake_all();
  if (result != 0) {
    std::int64_t none = 0;
    std::atomic_ref(*layer.status).compare_exchange_strong(none, result);
  }
  if (left_[part.layer].fetch_sub(1, std::memory_order_acq_rel) == 1) left_[part.layer].notify_all();
}

void Step::run_node(void* node) {
  const auto* self = static_cast<const Node*>(node);
  if (self->layer == 0) self->step->start();
  self->step->wait(self->layer);
}

}  // namespace sgl_ext
