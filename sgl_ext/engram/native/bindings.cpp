// Python face of the step reader. Addresses are ints: memory is pinned by torch, functions come from engram._core.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "step_reader.hpp"

namespace py = pybind11;

namespace {

using Address = std::uintptr_t;
// reader, ids, number of ids, weight out, scale out, status
using LayerAddresses = std::tuple<Address, Address, std::size_t, Address, Address, Address>;

template <typename T>
T* at(Address address, const char* name) {
  if (address == 0) throw py::value_error(std::string(name) + " must not be address 0");
  return reinterpret_cast<T*>(address);
}

std::shared_ptr<sgl_ext::ReaderPool> make_pool(Address read_now, std::size_t weight_bytes, std::size_t scale_bytes,
                                               unsigned num_threads) {
  if (num_threads == 0) throw py::value_error("num_threads must be at least 1, got 0");
  auto* entry = reinterpret_cast<sgl_ext::ReadNow>(at<void>(read_now, "read_now_address"));
  return std::make_shared<sgl_ext::ReaderPool>(entry, weight_bytes, scale_bytes, num_threads);
}

std::unique_ptr<sgl_ext::Step> make_step(std::shared_ptr<sgl_ext::ReaderPool> pool,
                                         const std::vector<LayerAddresses>& addresses, std::size_t part_ids) {
  if (part_ids == 0) throw py::value_error("part_ids must be at least 1, got 0");
  std::vector<sgl_ext::LayerRead> layers;
  for (const auto& [reader, ids, num_ids, weight, scale, status] : addresses)
    layers.push_back({at<void>(reader, "reader"), at<std::int64_t>(ids, "ids"), num_ids,
                      at<std::byte>(weight, "weight"), at<std::byte>(scale, "scale"),
                      at<std::int64_t>(status, "status")});
  return std::make_unique<sgl_ext::Step>(std::move(pool), std::move(layers), part_ids);
}

}  // namespace

PYBIND11_MODULE(_native, m) {
  py::class_<sgl_ext::ReaderPool, std::shared_ptr<sgl_ext::ReaderPool>>(m, "ReaderPool")
      .def(py::init(&make_pool), py::kw_only(), py::arg("read_now_address"), py::arg("weight_bytes"),
           py::arg("scale_bytes"), py::arg("num_threads"));
  py::class_<sgl_ext::Step>(m, "Step")
      .def(py::init(&make_step), py::arg("pool"), py::arg("layers"), py::kw_only(), py::arg("part_ids"))
      .def("node_address", [](sgl_ext::Step& self, std::size_t layer) {
        return reinterpret_cast<Address>(self.node(layer));
      })
      .def("run_node", [](sgl_ext::Step& self, std::size_t layer) { sgl_ext::Step::run_node(self.node(layer)); },
           py::call_guard<py::gil_scoped_release>());
  m.attr("RUN_NODE_ADDRESS") = reinterpret_cast<Address>(&sgl_ext::Step::run_node);
}
