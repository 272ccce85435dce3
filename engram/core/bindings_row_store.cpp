// Python face of the row store: checks buffers, releases the GIL, turns faults into Python errors.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "c_entry.hpp"
#include "fault_script.hpp"
#include "reference_reader.hpp"
#include "row_store.hpp"

namespace py = pybind11;

namespace {

using engram::RowStore;
// No conversion: a silent copy of a million ids would cost more than the lookup.
using Ids = py::array_t<std::int64_t, py::array::c_style>;

[[noreturn]] void raise(const py::object& error) {
  PyErr_SetObject(py::type::of(error).ptr(), error.ptr());
  throw py::error_already_set();
}

py::object faults() { return py::module_::import("engram.read_faults"); }

std::chrono::nanoseconds to_ns(double seconds) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

// Writable memory of the caller: an object with the buffer protocol, or a bare address (pinned memory).
class OutBuffer {
 public:
  OutBuffer(const py::object& target, std::size_t needed_bytes, const char* name) {
    if (py::isinstance<py::int_>(target)) {
      data_ = reinterpret_cast<std::byte*>(target.cast<std::uintptr_t>());
      if (data_ == nullptr && needed_bytes > 0)
        throw py::value_error(std::string(name) + " must not be address 0");
      return;
    }
    auto view = std::make_unique<Py_buffer>();
    if (PyObject_GetBuffer(target.ptr(), view.get(), PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) != 0)
      throw py::error_already_set();
    view_ = std::move(view);
    data_ = static_cast<std::byte*>(view_->buf);
    const auto length = static_cast<std::size_t>(view_->len);
    if (length >= needed_bytes) return;
    release();
    throw py::value_error(std::string(name) + " must hold " + std::to_string(needed_bytes) + " bytes, got " +
                          std::to_string(length));
  }
  OutBuffer(OutBuffer&&) = default;
  OutBuffer& operator=(OutBuffer&&) = delete;
  ~OutBuffer() { release(); }

  std::byte* data() const { return data_; }

  void release() {
    if (view_ != nullptr) PyBuffer_Release(view_.get());
    view_ = nullptr;
  }

 private:
  std::unique_ptr<Py_buffer> view_;
  std::byte* data_ = nullptr;
};

struct PyStore {
  std::unique_ptr<RowStore> store;
  std::shared_ptr<engram::FaultScript> seam;
  std::vector<std::unique_ptr<engram_reader>> readers;

  std::uint32_t check_table(std::uint32_t table) const {
    if (table >= store->num_tables()) throw py::index_error("no table " + std::to_string(table));
    return table;
  }

  [[noreturn]] void raise_foreign_id(std::uint32_t table, std::int64_t id, std::size_t idx) const {
    raise(faults().attr("make_row_id_error")(id, idx, store->path(table)));
  }
};

class PyTicket {
 public:
  PyTicket(std::shared_ptr<PyStore> store, std::shared_ptr<engram::Ticket> ticket, OutBuffer weight,
           OutBuffer scale)
      : store_(std::move(store)),
        ticket_(std::move(ticket)),
        weight_(std::move(weight)),
        scale_(std::move(scale)) {}
  PyTicket(PyTicket&&) = default;
  PyTicket& operator=(PyTicket&&) = delete;
  ~PyTicket() {
    if (ticket_ == nullptr) return;
    // The caller's memory is about to be released: nobody may write to it any more.
    if (ticket_->state() == engram::TicketState::kPending) store_->store->cancel(*ticket_);
  }

  bool done() const { return ticket_->state() != engram::TicketState::kPending; }
  void cancel() { store_->store->cancel(*ticket_); }

  void wait(std::optional<double> timeout_s) {
    using std::chrono::milliseconds;
    const auto limit = timeout_s ? engram::Clock::now() + to_ns(*timeout_s) : engram::Clock::time_point::max();
    for (;;) {
      engram::TicketState state;
      const auto left =
          timeout_s ? std::max(limit - engram::Clock::now(), engram::Clock::duration(0)) : milliseconds(100);
      {
        const py::gil_scoped_release release;
        // In slices, so that Ctrl-C gets through.
        state = ticket_->wait(std::min<std::chrono::nanoseconds>(left, milliseconds(100)));
      }
      if (state == engram::TicketState::kDone) return;
      if (state == engram::TicketState::kFailed) raise_failure();
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      if (timeout_s && engram::Clock::now() >= limit) raise(faults().attr("make_wait_timeout")(*timeout_s));
    }
  }

 private:
  [[noreturn]] void raise_failure() {
    const engram::ReadFailure failure = ticket_->failure();
    raise(faults().attr("make_read_error")(store_->store->path(failure.table), failure.offset, failure.error,
                                           failure.wanted_bytes, failure.got_bytes));
  }

  std::shared_ptr<PyStore> store_;
  std::shared_ptr<engram::Ticket> ticket_;
  OutBuffer weight_;
  OutBuffer scale_;
};

engram::BackendKind parse_backend(const std::string& name) {
  if (name == "io_uring") return engram::BackendKind::kUring;
  if (name == "threads") return engram::BackendKind::kThreads;
  if (name == "ram") return engram::BackendKind::kRam;
  throw py::value_error("backend must be io_uring, threads or ram, got " + name);
}

std::shared_ptr<PyStore> open_store(const std::vector<std::string>& paths, const std::string& backend,
                                    std::uint64_t cache_bytes, std::uint64_t lookahead_bytes,
                                    std::uint32_t queue_depth, std::uint32_t lookahead_depth,
                                    std::uint32_t max_pages_per_read, std::uint32_t max_gap_pages,
                                    std::uint32_t num_threads, double deadline_s, bool allow_buffered,
                                    std::shared_ptr<engram::FaultScript> seam) {
  engram::StoreOptions options;
  options.backend = parse_backend(backend);
  options.cache_bytes = cache_bytes;
  options.lookahead_bytes = lookahead_bytes;
  options.num_threads = num_threads;
  options.allow_buffered = allow_buffered;
  options.max_gap_pages = max_gap_pages;
  options.scheduler = {queue_depth, lookahead_depth, max_pages_per_read, to_ns(deadline_s)};
  engram::OpenFault fault;
  auto result = std::make_shared<PyStore>();
  result->seam = std::move(seam);
  {
    const py::gil_scoped_release release;
    result->store = RowStore::open(paths, options, result->seam.get(), fault);
  }
  if (result->store == nullptr)
    raise(faults().attr("make_open_error")(fault.path, fault.message, fault.error, fault.needs_allow_buffered));
  for (std::uint32_t table = 0; table < result->store->num_tables(); ++table)
    result->readers.push_back(std::make_unique<engram_reader>(engram_reader{result->store.get(), table}));
  return result;
}

PyTicket submit(const std::shared_ptr<PyStore>& self, std::uint32_t table, const Ids& ids,
                const py::object& weight_out, const py::object& scale_out, bool lookahead_priority) {
  self->check_table(table);
  const auto count = static_cast<std::size_t>(ids.size());
  if (count > RowStore::kMaxIds)
    throw py::value_error("row_ids must be at most " + std::to_string(RowStore::kMaxIds) + ", got " +
                          std::to_string(count));
  const engram::RowShape shape = self->store->shape();
  OutBuffer weight(weight_out, count * shape.weight_bytes, "weight buffer");
  OutBuffer scale(scale_out, count * shape.scale_bytes, "scale buffer");
  const std::span<const std::int64_t> span(ids.data(), count);
  const engram::RowPlanes out{weight.data(), scale.data()};
  const auto priority = lookahead_priority ? engram::Priority::kLookahead : engram::Priority::kDecode;
  engram::SubmitFault fault;
  std::shared_ptr<engram::Ticket> ticket;
  {
    const py::gil_scoped_release release;
    ticket = self->store->submit(table, span, out, priority, fault);
  }
  if (ticket == nullptr) self->raise_foreign_id(table, span[fault.bad_idx], fault.bad_idx);
  return {self, std::move(ticket), std::move(weight), std::move(scale)};
}

engram::Lookahead& lookahead_of(const PyStore& self) {
  engram::Lookahead* lookahead = self.store->lookahead();
  if (lookahead == nullptr)
    throw py::value_error("lookahead_budget_bytes must be above 0 for this call, got 0");
  return *lookahead;
}

// The caller keeps `ids` alive and unchanged until cancel_request() or close().
void prefetch(const PyStore& self, std::uint64_t request, std::uint32_t table, const Ids& ids) {
  engram::Lookahead& lookahead = lookahead_of(self);
  const std::span<const std::int64_t> span(ids.data(), static_cast<std::size_t>(ids.size()));
  self.check_table(table);
  std::size_t foreign = 0;
  {
    const py::gil_scoped_release release;
    foreign = self.store->find_foreign_id(table, span);
    if (foreign == engram::SubmitFault::kNone) lookahead.add(request, table, span);
  }
  if (foreign != engram::SubmitFault::kNone) self.raise_foreign_id(table, span[foreign], foreign);
}

py::dict histogram_dict(const engram::LatencyHistogram& histogram) {
  py::list buckets;
  for (std::size_t bucket = 0; bucket < engram::LatencyHistogram::kBuckets; ++bucket)
    if (const auto count = histogram.count(bucket))
      buckets.append(py::make_tuple(engram::LatencyHistogram::upper_ns(bucket), count));
  py::dict result;
  result["sum_ns"] = histogram.sum_ns();
  result["buckets"] = buckets;
  return result;
}

py::dict counters_dict(PyStore& self) {
  const engram::Counters& counters = self.store->counters();
  py::dict result;
  const auto put = [&](const char* name, const engram::Count& count) {
    result[name] = count.load(std::memory_order_relaxed);
  };
  put("requests", counters.requests);
  put("rows", counters.rows);
  put("hit_rows", counters.hit_rows);
  put("missed_rows", counters.missed_rows);
  put("missed_unique_rows", counters.missed_unique_rows);
  put("pages", counters.pages);
  put("lookahead_pages", counters.lookahead_pages);
  put("reads", counters.reads);
  put("read_bytes", counters.read_bytes);
  put("lookahead_rows", counters.lookahead_rows);
  put("lookahead_staged_rows", counters.lookahead_staged_rows);
  put("lookahead_unused_rows", counters.lookahead_unused_rows);
  put("retried_reads", counters.retried_reads);
  put("failed_reads", counters.failed_reads);
  put("timed_out_reads", counters.timed_out_reads);
  put("failed_requests", counters.failed_requests);
  put("cancelled_requests", counters.cancelled_requests);
  put("reads_in_flight", counters.reads_in_flight);
  put("lookahead_reads_in_flight", counters.lookahead_reads_in_flight);
  put("queued_requests", counters.queued_requests);
  result["cached_rows"] = self.store->cache().num_rows();
  result["cache_slots"] = self.store->cache().num_slots();
  result["lookahead_held_rows"] = self.store->cache().ledger().total_rows();
  result["read_latency"] = histogram_dict(counters.read_latency);
  result["request_latency"] = histogram_dict(counters.request_latency);
  return result;
}

py::bytes header_bytes(const PyStore& self, std::uint32_t table) {
  const engram::PackedHeader& header = self.store->header(self.check_table(table));
  return {reinterpret_cast<const char*>(&header), sizeof(header)};
}

py::dict header_fields(const PyStore& self, std::uint32_t table) {
  const engram::PackedHeader& header = self.store->header(self.check_table(table));
  py::dict fields;
  fields["layer_id"] = header.layer_id;
  fields["rank"] = header.rank;
  fields["tp"] = header.tp;
  fields["weight_bytes"] = header.weight_bytes;
  fields["scale_bytes"] = header.scale_bytes;
  fields["rows_per_page"] = header.rows_per_page;
  fields["num_rows"] = header.num_rows;
  fields["total_rows"] = header.total_rows;
  fields["file_bytes"] = header.file_bytes;
  py::list columns;
  for (std::uint32_t idx = 0; idx < header.num_columns; ++idx) {
    const engram::PackedColumn& column = header.columns[idx];
    columns.append(py::make_tuple(column.column_idx, column.first_row, column.num_rows));
  }
  fields["columns"] = columns;
  return fields;
}

// A host call and its status word, for cudaLaunchHostFunc.
class PyHostCall {
 public:
  PyHostCall(std::shared_ptr<PyStore> store, std::uint32_t table, std::uintptr_t ids, std::size_t count,
             std::uintptr_t weight_out, std::uintptr_t scale_out)
      : store_(std::move(store)) {
    store_->check_table(table);
    *call_ = {*store_->readers[table],
              reinterpret_cast<const std::int64_t*>(ids),
              count,
              reinterpret_cast<void*>(weight_out),
              reinterpret_cast<void*>(scale_out),
              status_.get()};
  }

  std::uintptr_t address() const { return reinterpret_cast<std::uintptr_t>(call_.get()); }
  std::int32_t status() const { return *status_; }
  void clear_status() { *status_ = 0; }
  void run() {
    const py::gil_scoped_release release;
    engram_run_host_call(call_.get());
  }

 private:
  std::shared_ptr<PyStore> store_;
  std::unique_ptr<std::int32_t> status_ = std::make_unique<std::int32_t>(0);
  std::unique_ptr<engram_host_call> call_ = std::make_unique<engram_host_call>();
};

void bind_faults(py::module_& m) {
  py::class_<engram::FaultScript, std::shared_ptr<engram::FaultScript>>(m, "FaultScript")
      .def(py::init<>())
      .def(
          "add",
          [](engram::FaultScript& self, std::int32_t result, std::uint64_t first_byte, std::uint64_t end_byte,
             std::uint32_t skip, std::uint32_t times) {
            self.add({result, first_byte, end_byte, skip, times});
          },
          py::kw_only(), py::arg("result"), py::arg("first_byte") = 0, py::arg("end_byte") = ~std::uint64_t{0},
          py::arg("skip") = 0, py::arg("times") = 1)
      .def_property_readonly("applied", &engram::FaultScript::applied)
      .def_property_readonly_static("HANG", [](const py::object&) { return engram::FaultSeam::kHang; });
}

void bind_reference(py::module_& m) {
  using engram::ReferenceReader;
  py::class_<ReferenceReader>(m, "ReferenceReader")
      .def(py::init<const std::string&, std::uint32_t, std::uint64_t>(), py::kw_only(), py::arg("path"),
           py::arg("num_threads"), py::arg("cache_bytes"))
      .def(
          "read",
          [](ReferenceReader& self, const Ids& ids, const py::object& weight_out, const py::object& scale_out) {
            const auto count = static_cast<std::size_t>(ids.size());
            const engram::RowShape shape = self.shape();
            const OutBuffer weight(weight_out, count * shape.weight_bytes, "weight buffer");
            const OutBuffer scale(scale_out, count * shape.scale_bytes, "scale buffer");
            const std::span<const std::int64_t> span(ids.data(), count);
            const py::gil_scoped_release release;
            return self.read(span, {weight.data(), scale.data()});
          },
          py::arg("ids").noconvert(), py::arg("weight_out"), py::arg("scale_out"))
      .def_property_readonly("hits", &ReferenceReader::hits);
}

}  // namespace

void bind_row_store(py::module_& m) {
  py::class_<PyTicket>(m, "Ticket")
      .def_property_readonly("done", &PyTicket::done)
      .def("wait", &PyTicket::wait, py::arg("timeout_s") = py::none())
      .def("cancel", &PyTicket::cancel);
  py::class_<PyStore, std::shared_ptr<PyStore>>(m, "RowStore")
      .def(py::init(&open_store), py::kw_only(), py::arg("paths"), py::arg("backend"), py::arg("cache_bytes"),
           py::arg("lookahead_bytes"), py::arg("queue_depth"), py::arg("lookahead_depth"),
           py::arg("max_pages_per_read"), py::arg("max_gap_pages"), py::arg("num_threads"),
           py::arg("deadline_s"), py::arg("allow_buffered"), py::arg("seam") = nullptr)
      .def("submit", &submit, py::arg("table"), py::arg("ids").noconvert(), py::arg("weight_out"),
           py::arg("scale_out"), py::arg("lookahead_priority") = false)
      .def("prefetch", &prefetch, py::arg("request"), py::arg("table"), py::arg("ids").noconvert())
      .def(
          "advance",
          [](const PyStore& self, std::uint64_t request, std::uint32_t table, std::uint64_t position) {
            lookahead_of(self).advance(request, self.check_table(table), position);
          },
          py::call_guard<py::gil_scoped_release>())
      .def(
          "cancel_request",
          [](const PyStore& self, std::uint64_t request) { lookahead_of(self).cancel(request); },
          py::call_guard<py::gil_scoped_release>())
      .def("counters", &counters_dict)
      .def("header_bytes", &header_bytes)
      .def("header_fields", &header_fields)
      .def("reader_address",
           [](const PyStore& self, std::uint32_t table) {
             return reinterpret_cast<std::uintptr_t>(self.readers[self.check_table(table)].get());
           })
      .def(
          "close", [](PyStore& self) { self.store->close(); }, py::call_guard<py::gil_scoped_release>());
  py::class_<PyHostCall>(m, "HostCall")
      .def(py::init<std::shared_ptr<PyStore>, std::uint32_t, std::uintptr_t, std::size_t, std::uintptr_t,
                    std::uintptr_t>(),
           py::kw_only(), py::arg("store"), py::arg("table"), py::arg("ids_address"), py::arg("num_ids"),
           py::arg("weight_address"), py::arg("scale_address"))
      .def_property_readonly("address", &PyHostCall::address)
      .def_property_readonly("status", &PyHostCall::status)
      .def("clear_status", &PyHostCall::clear_status)
      .def("run", &PyHostCall::run);
  m.attr("READ_NOW_ADDRESS") = reinterpret_cast<std::uintptr_t>(&engram_read_now);
  m.attr("RUN_HOST_CALL_ADDRESS") = reinterpret_cast<std::uintptr_t>(&engram_run_host_call);
  m.attr("READ_NOW") = py::capsule(reinterpret_cast<void*>(&engram_read_now), "engram_read_now");
  m.attr("MAX_IDS_PER_SUBMIT") = RowStore::kMaxIds;
  m.attr("HEADER_BYTES") = engram::kHeaderBytes;
  bind_faults(m);
  bind_reference(m);
}
