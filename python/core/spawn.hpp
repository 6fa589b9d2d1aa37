// SPDX-License-Identifier: Apache-2.0
// Ranks: what shmbroker/processes.py starts and joins (processes.cpp), and what a rank calls (rank.cpp). The functions
// take positions only and nanoseconds, because only the package calls them.
#pragma once

#include "client/face/shmbroker.h"
#include "python/core/errors.hpp"
#include "spawn/face/shmbroker_spawn.h"

namespace shmb::python {

// Each adds its functions. False: an exception is set.
bool add_processes(PyObject* module);
bool add_rank(PyObject* module);

// A text that is not quite UTF-8 (a traceback, a file's name) arrives readable. Empty with an exception set.
inline Ref decoded(const char* text) {
  return Ref(PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(__builtin_strlen(text)), "backslashreplace"));
}

}  // namespace shmb::python
