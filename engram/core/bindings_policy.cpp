// Python face of the cache policies that the benchmark compares.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>

#include "cache_policy.hpp"

namespace py = pybind11;

void bind_policy(py::module_& m) {
  using engram::CachePolicy;
  py::class_<CachePolicy>(m, "CachePolicy")
      .def(py::init([](const std::string& name, std::uint32_t weight_bytes, std::uint32_t scale_bytes,
                       std::uint64_t cache_bytes) {
             auto policy = CachePolicy::make(name, {weight_bytes, scale_bytes}, cache_bytes);
             if (policy == nullptr)
               throw py::value_error("name must be one of s3fifo, lru, set16, got " + name);
             return policy;
           }),
           py::kw_only(), py::arg("name"), py::arg("weight_bytes"), py::arg("scale_bytes"),
           py::arg("cache_bytes"))
      .def(
          "step",
          [](CachePolicy& self, const py::array_t<std::int64_t, py::array::c_style>& ids) {
            const auto count = self.step({ids.data(), static_cast<std::size_t>(ids.size())});
            return py::make_tuple(count.hits, count.missed_unique);
          },
          py::arg("ids").noconvert());
}
