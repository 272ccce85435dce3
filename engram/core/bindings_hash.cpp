// Python face of the hasher and of the page writer: checks shapes, releases the GIL.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "hash.hpp"
#include "page_rows.hpp"

namespace py = pybind11;

namespace {

// No conversion: a float or a wrong width is the caller's bug, and a copy of a 1 M-token prompt would be silent.
template <typename T>
using Array = py::array_t<T, py::array::c_style>;

template <typename T>
std::vector<T> to_vector(const Array<T>& array) {
  return {array.data(), array.data() + array.size()};
}

template <typename T>
std::span<const T> to_span(const Array<T>& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

void require(bool good, const char* what) {
  if (!good) throw std::invalid_argument(what);
}

std::unique_ptr<engram::RowHasher> make_hasher(const Array<std::int32_t>& class_ids,
                                               const Array<std::int64_t>& multipliers,
                                               const Array<std::int32_t>& orders,
                                               const Array<std::int64_t>& primes,
                                               const Array<std::int64_t>& offsets, std::int32_t pad_class,
                                               std::int64_t image_token_id, std::int64_t image_base_id) {
  require(multipliers.ndim() == 2, "multipliers must be [layers][window_tokens]");
  engram::HashConfig config;
  config.class_ids = to_vector(class_ids);
  config.multipliers = to_vector(multipliers);
  config.orders = to_vector(orders);
  config.primes = to_vector(primes);
  config.offsets = to_vector(offsets);
  config.num_layers = static_cast<int>(multipliers.shape(0));
  config.window_tokens = static_cast<int>(multipliers.shape(1));
  config.pad_class = pad_class;
  config.image_token_id = image_token_id;
  config.image_base_id = image_base_id;
  return std::make_unique<engram::RowHasher>(std::move(config));
}

void check_out(const engram::RowHasher& hasher, const Array<std::int64_t>& out, py::ssize_t num_tokens) {
  require(out.ndim() == 3 && out.shape(0) == num_tokens && out.shape(1) == hasher.num_layers() &&
              out.shape(2) == hasher.num_columns(),
          "out must be [tokens][layers][columns]");
}

std::int64_t hash_runs(const engram::RowHasher& hasher, const Array<std::int64_t>& tokens,
                       const Array<std::int64_t>& lengths, const Array<std::int64_t>& start_positions,
                       const Array<std::int64_t>& history, Array<std::int64_t>& out) {
  check_out(hasher, out, tokens.size());
  require(tokens.ndim() == 1, "tokens must be [tokens]");
  require(lengths.size() == start_positions.size(), "start_positions must be [runs]");
  require(history.size() == lengths.size() * (hasher.window_tokens() - 1),
          "history must be [runs][window_tokens - 1]");
  const engram::Runs runs{to_span(tokens), to_span(lengths), to_span(start_positions), to_span(history)};
  std::int64_t left = tokens.size();
  for (const std::int64_t length : runs.lengths) {
    require(length >= 0 && length <= left, "lengths must not be negative nor exceed the tokens");
    left -= length;
  }
  require(std::ranges::all_of(runs.start_positions, [](std::int64_t start) { return start >= 0; }),
          "start_positions must not be negative");
  std::int64_t* target = out.mutable_data();
  const py::gil_scoped_release release;
  return hasher.hash_runs(runs, target);
}

std::int64_t hash_windows(const engram::RowHasher& hasher, const Array<std::int64_t>& windows,
                          const Array<std::uint8_t>& blocked, Array<std::int64_t>& out) {
  require(windows.ndim() == 2 && windows.shape(1) == hasher.window_tokens(),
          "windows must be [tokens][window_tokens]");
  require(blocked.ndim() == 2 && blocked.shape(0) == windows.shape(0) && blocked.shape(1) == windows.shape(1),
          "blocked must be [tokens][window_tokens]");
  check_out(hasher, out, windows.shape(0));
  std::int64_t* target = out.mutable_data();
  const auto windows_span = to_span(windows);
  const auto blocked_span = to_span(blocked);
  const py::gil_scoped_release release;
  return hasher.hash_windows(windows_span, blocked_span, target);
}

void interleave_rows(const py::buffer& weight, const py::buffer& scale, const py::buffer& pages,
                     std::size_t weight_bytes, std::size_t scale_bytes, std::size_t page_bytes,
                     std::size_t first_row, std::size_t num_rows) {
  const py::buffer_info from_weight = weight.request();
  const py::buffer_info from_scale = scale.request();
  const py::buffer_info to_pages = pages.request(/*writable=*/true);
  require(from_weight.itemsize == 1 && from_scale.itemsize == 1 && to_pages.itemsize == 1,
          "weight, scale and pages must be bytes");
  const std::size_t row_bytes = weight_bytes + scale_bytes;
  require(weight_bytes >= 1 && row_bytes <= page_bytes && page_bytes <= (1U << 20), "a row must fit a page");
  const engram::PageShape shape{weight_bytes, scale_bytes, page_bytes / row_bytes, page_bytes};
  constexpr std::size_t kMaxRows = std::size_t{1} << 40;
  require(first_row < kMaxRows && num_rows < kMaxRows, "too many rows");
  require(static_cast<std::size_t>(from_weight.size) >= num_rows * weight_bytes, "weight is too short");
  require(static_cast<std::size_t>(from_scale.size) >= num_rows * scale_bytes, "scale is too short");
  const std::size_t num_pages = (first_row + num_rows + shape.rows_per_page - 1) / shape.rows_per_page;
  require(static_cast<std::size_t>(to_pages.size) >= num_pages * page_bytes, "pages are too short");
  const auto* weight_data = static_cast<const std::uint8_t*>(from_weight.ptr);
  const auto* scale_data = static_cast<const std::uint8_t*>(from_scale.ptr);
  auto* page_data = static_cast<std::uint8_t*>(to_pages.ptr);
  const py::gil_scoped_release release;
  engram::interleave_rows(shape, weight_data, scale_data, first_row, num_rows, page_data);
}

}  // namespace

void bind_hash(py::module_& m) {
  py::class_<engram::RowHasher>(m, "RowHasher")
      .def(py::init(&make_hasher), py::kw_only(), py::arg("class_ids").noconvert(),
           py::arg("multipliers").noconvert(), py::arg("orders").noconvert(), py::arg("primes").noconvert(),
           py::arg("offsets").noconvert(), py::arg("pad_class"), py::arg("image_token_id"),
           py::arg("image_base_id"))
      .def("hash_runs", &hash_runs, py::arg("tokens").noconvert(), py::arg("lengths").noconvert(),
           py::arg("start_positions").noconvert(), py::arg("history").noconvert(), py::arg("out").noconvert())
      .def("hash_windows", &hash_windows, py::arg("windows").noconvert(), py::arg("blocked").noconvert(),
           py::arg("out").noconvert());
  m.def("interleave_rows", &interleave_rows, py::arg("weight"), py::arg("scale"), py::arg("pages"), py::kw_only(),
        py::arg("weight_bytes"), py::arg("scale_bytes"), py::arg("page_bytes"), py::arg("first_row"),
        py::arg("num_rows"));
}
