// Entry of the extension module; each bind_ function owns one area.
#include <pybind11/pybind11.h>

void bind_row_store(pybind11::module_& m);
void bind_hash(pybind11::module_& m);
void bind_policy(pybind11::module_& m);

PYBIND11_MODULE(_core, m) {
  bind_row_store(m);
  bind_hash(m);
  bind_policy(m);
}
