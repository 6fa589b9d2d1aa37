// SPDX-License-Identifier: Apache-2.0
// Python's limited API, an owning reference to an object, and the GIL as a scope.
#pragma once

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <unistd.h>

#include <utility>

#include "client/face/shmbroker.h"

namespace shmb::python {

// Owns one reference. Empty where a call of Python's has failed.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : it_(owned) {}
  static Ref borrow(PyObject* object) { return Ref(Py_XNewRef(object)); }
  Ref(Ref&& other) noexcept : it_(std::exchange(other.it_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(it_, other.it_);
    return *this;
  }
  ~Ref() { Py_XDECREF(it_); }

  PyObject* get() const { return it_; }
  PyObject* release() { return std::exchange(it_, nullptr); }
  explicit operator bool() const { return it_ != nullptr; }

 private:
  PyObject* it_ = nullptr;
};

// Once the interpreter ends, Python ends a thread that asks for the GIL (pthread_exit). That would unwind this module,
// whose destructors need the GIL. So such a thread stays in this call until its process has gone.
template <class Call>
auto or_stay(Call call) noexcept {
  try {
    return call();
  } catch (...) {
    for (;;) ::pause();
  }
}

// The calling thread without the GIL.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;
  ~Unlocked() {
    or_stay([&] { PyEval_RestoreThread(state_); });
  }

 private:
  PyThreadState* state_;
};

// An exception that is on its way stays so across what a destructor calls.
class KeptException {
 public:
  KeptException() { PyErr_Fetch(&type_, &value_, &trace_); }
  KeptException(const KeptException&) = delete;
  KeptException& operator=(const KeptException&) = delete;
  ~KeptException() { PyErr_Restore(type_, value_, trace_); }

 private:
  PyObject *type_ = nullptr, *value_ = nullptr, *trace_ = nullptr;
};

}  // namespace shmb::python
