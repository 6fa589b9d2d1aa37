// SPDX-License-Identifier: Apache-2.0
// The region that an argument names: by address, by identity or by ticket.
#pragma once

#include "python/core/values.hpp"

namespace shmb::python {

// The memory that it points to is the argument's, or its own.
struct Place {
  const char* address = nullptr;
  const std::uint8_t* ticket = nullptr;
  shmb_region_id id{};

  bool read(PyObject* where);  // false: an exception is set
  // Adds to the sentence of a name that is not there what a caller who gave the text of a ticket has to do.
  void explain(shmb_error& failure) const;
};

}  // namespace shmb::python
