// SPDX-License-Identifier: Apache-2.0
// See errors.hpp.
#include "python/core/errors.hpp"

#include <cstdarg>
#include <cstdio>

namespace shmb::python {

namespace {

PyObject* make = nullptr;  // shmbroker.errors.make

}  // namespace

bool load_errors() {
  const Ref module(PyImport_ImportModule("shmbroker.errors"));
  if (!module) return false;
  PyObject* const found = PyObject_GetAttrString(module.get(), "make");
  if (found == nullptr) return false;
  Py_XDECREF(std::exchange(make, found));
  return true;
}

Ref make_error(const shmb_error& failure) {
  shmb_error told = failure;
  shmb_error_words(&told, SHMB_WORDS_PYTHON);
  // A sentence that was cut may end within a character.
  const Ref sentence(
      PyUnicode_DecodeUTF8(told.sentence, static_cast<Py_ssize_t>(__builtin_strlen(told.sentence)), "replace"));
  if (!sentence) return {};
  const unsigned long long scope_id = told.scope_id, limit = told.limit, used = told.used, asked = told.asked;
  return Ref(PyObject_CallFunction(make, "isOiIIKKKK", told.status, shmb_status_name(told.status), sentence.get(),
                                   told.system_errno, told.slot, told.scope, scope_id, limit, used, asked));
}

Ref make_error(int status) {
  shmb_error failure{};
  failure.status = status;
  std::snprintf(failure.sentence, sizeof(failure.sentence), "%s", shmb_status_text(status));
  return make_error(failure);
}

std::nullptr_t raise(const shmb_error& failure) {
  if (const Ref exception = make_error(failure))
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.get())), exception.get());
  return nullptr;
}

std::nullptr_t raise(int status, const char* format, ...) {
  shmb_error failure{};
  failure.status = status;
  va_list values;
  va_start(values, format);
  std::vsnprintf(failure.sentence, sizeof(failure.sentence), format, values);
  va_end(values);
  return raise(failure);
}

}  // namespace shmb::python
