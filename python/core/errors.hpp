// SPDX-License-Identifier: Apache-2.0
// From a status of the library to an exception of shmbroker/errors.py.
#pragma once

#include "python/core/python.hpp"

namespace shmb::python {

// Loads shmbroker.errors. False: an exception is set.
bool load_errors();

// A new exception object for a failure, or empty with an exception set.
Ref make_error(const shmb_error& failure);
// For one element of a batch, of which only the status is known.
Ref make_error(int status);

// Each sets an exception and returns nullptr.
std::nullptr_t raise(const shmb_error& failure);
std::nullptr_t raise(int status, const char* format, ...) __attribute__((format(printf, 2, 3)));

// "the queue was closed", with the status closed.
inline std::nullptr_t raise_closed(const char* noun) { return raise(SHMB_E_CLOSED, "the %s was closed", noun); }

}  // namespace shmb::python
