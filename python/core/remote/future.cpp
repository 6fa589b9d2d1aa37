// SPDX-License-Identifier: Apache-2.0
// RemoteFuture: the outcome of a call.
#include "python/core/remote/remote.hpp"

namespace shmb::python::remote {

namespace {

// (content, None) of a call that succeeded, (None, failure) of one that failed. The content is taken once.
PyObject* outcome(Future* future, int status, shmb_content* content, const shmb_error& error) {
  if (status == SHMB_OK) {
    const Ref taken = take(future->world, content);
    return taken ? PyTuple_Pack(2, taken.get(), Py_None) : nullptr;
  }
  shmb_remote_failure failure{};
  failure.size = sizeof failure;
  if (shmb_future_failure(future->handle, &failure, nullptr) != SHMB_OK) return raise(error);
  const Ref told = describe(failure);
  return told ? PyTuple_Pack(2, Py_None, told.get()) : nullptr;
}

// wait(nanoseconds) -> (content, failure). Timeout is raised where this wait was too short.
PyObject* wait(PyObject* self, PyObject* nanoseconds) {
  auto* const future = as<Future>(self);
  const long long timeout = PyLong_AsLongLong(nanoseconds);
  if (timeout == -1 && PyErr_Occurred() != nullptr) return nullptr;
  shmb_content* content = nullptr;
  shmb_error error{};
  const int status = wait_in(
      future, timeout, [&](std::int64_t left) { return shmb_future_wait(future->handle, left, &content, &error); });
  return status == kRaised ? nullptr : outcome(future, status, content, error);
}

// settle(nanoseconds): waits, and leaves the outcome to wait().
PyObject* settle(PyObject* self, PyObject* nanoseconds) {
  auto* const future = as<Future>(self);
  const long long timeout = PyLong_AsLongLong(nanoseconds);
  if (timeout == -1 && PyErr_Occurred() != nullptr) return nullptr;
  shmb_error error{};
  const int status = wait_in(
      future, timeout, [&](std::int64_t left) { return shmb_future_wait(future->handle, left, nullptr, &error); });
  if (status == kRaised) return nullptr;
  Py_RETURN_NONE;
}

PyObject* pending(PyObject* self, PyObject*) {
  return PyBool_FromLong(shmb_future_get_state(as<Future>(self)->handle) == SHMB_FUTURE_PENDING);
}

void finished(void* context, shmb_future*) {
  const Locked locked;
  or_stay([&] {
    auto* const call = static_cast<PyObject*>(context);
    PyObject* const none = PyObject_CallNoArgs(call);
    if (none == nullptr) PyErr_WriteUnraisable(call);
    Py_XDECREF(none);
    Py_DECREF(call);
  });
}

// then(call): calls it once, by a thread of the library, or at once. It has to refer to this future.
PyObject* then(PyObject* self, PyObject* call) {
  shmb_error error{};
  Py_INCREF(call);
  int status = 0;
  {
    const Call<Future> use(as<Future>(self));
    const Unlocked unlocked;
    status = shmb_future_then(as<Future>(self)->handle, finished, call, &error);
  }
  if (status == SHMB_OK) Py_RETURN_NONE;
  Py_DECREF(call);
  return raise(error);
}

void deallocate(PyObject* self) {
  const KeptException kept;
  close_handle(as<Future>(self));
  Py_XDECREF(as_object(as<Future>(self)->world));
  free_object(self);
}

PyMethodDef methods[] = {{"wait", wait, METH_O, nullptr},
                         {"settle", settle, METH_O, nullptr},
                         {"pending", pending, METH_NOARGS, nullptr},
                         {"then", then, METH_O, nullptr},
                         {nullptr, nullptr, 0, nullptr}};
PyType_Slot slots[] = {{Py_tp_doc, const_cast<char*>("The outcome of a call of another worker.")},
                       {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
                       {Py_tp_methods, methods},
                       {0, nullptr}};
PyType_Spec spec = {"shmbroker._core.RemoteFuture", sizeof(Future), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, slots};

}  // namespace

void Future::finish() {
  shmb_future* const ended = std::exchange(handle, nullptr);
  const Unlocked unlocked;
  shmb_future_free(ended);
}

PyObject* make_future(World* world, shmb_future* handle) {
  auto* const made = make_object<Future>(types.future);
  if (made == nullptr) {
    shmb_future_free(handle);
    return nullptr;
  }
  made->handle = handle;
  made->world = as<World>(Py_NewRef(as_object(world)));
  return as_object(made);
}

bool add_future(PyObject* module) { return add_type(module, spec, types.future); }

}  // namespace shmb::python::remote
