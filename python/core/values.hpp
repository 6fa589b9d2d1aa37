// SPDX-License-Identifier: Apache-2.0
// The plain values of the package: struct sequences, which are tuples whose elements have names.
#pragma once

#include <cstdint>
#include <string_view>

#include "python/core/python.hpp"

namespace shmb::python {

enum class Value : std::uint8_t {
  region_id,
  session_info,
  region_info,
  region_stat,
  group,
  group_ending,
  watch,
  event,
  size_class_info,
  pool_info,
  queue_info,
  gpu_tensor,
};

// Makes the types and puts them into the module. False: an exception is set.
bool add_values(PyObject* module);
PyTypeObject* value_type(Value which);

// Fills a value, element by element. An element that could not be made makes the value empty.
class Row {
 public:
  explicit Row(Value which);
  Row& add(PyObject* owned);
  Row& number(std::uint64_t value) { return add(PyLong_FromUnsignedLongLong(value)); }
  Row& signed_number(std::int64_t value) { return add(PyLong_FromLongLong(value)); }
  Row& truth(bool value) { return add(PyBool_FromLong(value)); }
  Row& seconds(std::int64_t nanoseconds) { return add(PyFloat_FromDouble(static_cast<double>(nanoseconds) / 1e9)); }
  Row& text(std::string_view value);
  Row& region(const shmb_region_id& id);
  Row& keep(std::int64_t nanoseconds);
  PyObject* done() { return row_.release(); }

 private:
  Ref row_;
  Py_ssize_t next_ = 0;
};

PyObject* make_region_id(const shmb_region_id& id);
bool is_region_id(PyObject* object);
bool to_region_id(PyObject* object, shmb_region_id& id);

PyObject* make_region_info(const shmb_region_info& info);
PyObject* make_region_stat(const shmb_region_stat& stat);

}  // namespace shmb::python
