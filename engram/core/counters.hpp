// What the row store counts. Written with relaxed atomics by any thread; a reading is not a snapshot.
#pragma once

#include <atomic>
#include <cstdint>

#include "latency_histogram.hpp"

namespace engram {

using Count = std::atomic<std::uint64_t>;

inline void add(Count& count, std::uint64_t amount = 1) { count.fetch_add(amount, std::memory_order_relaxed); }

struct Counters {
  Count requests;               // submits
  Count rows;                   // row ids asked for, repeats included
  Count hit_rows;               // of these, served from memory at submit (cache, look-ahead or RAM)
  Count missed_rows;            // of these, served by reads
  Count missed_unique_rows;     // distinct rows among the missed ones of a submit
  Count pages;                  // 4 KiB pages read for submits; the unwanted ones in gaps do not count
  Count lookahead_pages;        // 4 KiB pages read ahead, likewise
  Count reads;                  // reads completed, each of one or more neighbouring pages
  Count read_bytes;             // with the unwanted pages between wanted ones
  Count lookahead_rows;         // rows planned for reading ahead
  Count lookahead_staged_rows;  // of these, read and staged
  Count lookahead_unused_rows;  // staged or planned rows that no request consumed
  Count retried_reads;          // EINTR, EAGAIN and short reads that were continued
  Count failed_reads;
  Count timed_out_reads;
  Count failed_requests;
  Count cancelled_requests;
  Count reads_in_flight;             // gauge
  Count lookahead_reads_in_flight;   // gauge, part of reads_in_flight
  Count queued_requests;             // gauge: requests with reads not yet started
  LatencyHistogram read_latency;     // one read, submission to completion
  LatencyHistogram request_latency;  // one submit of decode priority, call to last row
};

}  // namespace engram
