// SPDX-License-Identifier: Apache-2.0
// RemoteReference: one reference of this worker to a value, here or elsewhere. Its end takes it out of the books.
#include "python/core/remote/remote.hpp"

namespace shmb::python::remote {

namespace {

shmb_reference* handle_of(PyObject* self) { return as<Reference>(self)->handle; }

Ref known_failure(PyObject* self) {
  shmb_remote_failure failure{};
  failure.size = sizeof failure;
  if (shmb_reference_failure(handle_of(self), &failure, nullptr) != SHMB_OK) return Ref::borrow(Py_None);
  return describe(failure);
}

// info() -> (number, creator, fork, fork_creator, owner, owner_name, is_owner, confirmed, state)
PyObject* info(PyObject* self, PyObject*) {
  shmb_reference_info facts{};
  facts.size = sizeof facts;
  shmb_error error{};
  if (shmb_reference_get_info(handle_of(self), &facts, &error) != SHMB_OK) return raise(error);
  const unsigned long long number = facts.number, fork = facts.fork;
  return Py_BuildValue("KiKiisNNI", number, facts.creator, fork, facts.fork_creator, facts.owner, facts.owner_name,
                       PyBool_FromLong(facts.is_owner), PyBool_FromLong(facts.confirmed), facts.state);
}

using Ask = int (*)(shmb_reference*, int64_t, shmb_future**, shmb_error*) SHMB_NOEXCEPT;
// A future, or the failure that this worker knows of already.
PyObject* ask(PyObject* self, PyObject* nanoseconds, Ask question) {
  const long long timeout = PyLong_AsLongLong(nanoseconds);
  if (timeout == -1 && PyErr_Occurred() != nullptr) return nullptr;
  shmb_future* future = nullptr;
  shmb_error error{};
  int status = 0;
  {
    const Call<Reference> use(as<Reference>(self));
    const Unlocked unlocked;
    status = question(handle_of(self), timeout, &future, &error);
  }
  if (status == SHMB_OK) return make_future(as<Reference>(self)->world, future);
  Ref failure = known_failure(self);
  if (!failure || failure.get() != Py_None) return failure.release();
  return raise(error);
}
PyObject* fetch(PyObject* self, PyObject* timeout) { return ask(self, timeout, shmb_reference_fetch); }
PyObject* type(PyObject* self, PyObject* timeout) { return ask(self, timeout, shmb_reference_type); }

PyObject* created(PyObject* self, PyObject*) {
  shmb_future* future = nullptr;
  shmb_error error{};
  if (shmb_reference_created(handle_of(self), &future, &error) != SHMB_OK) return raise(error);
  return make_future(as<Reference>(self)->world, future);
}

// local(nanoseconds) -> (object, None) or (None, failure), at the owner
PyObject* local(PyObject* self, PyObject* nanoseconds) {
  const long long timeout = PyLong_AsLongLong(nanoseconds);
  if (timeout == -1 && PyErr_Occurred() != nullptr) return nullptr;
  void* object = nullptr;
  shmb_content* content = nullptr;
  shmb_error error{};
  const int status = wait_in(as<Reference>(self), timeout, [&](std::int64_t left) {
    return shmb_reference_local(handle_of(self), left, &object, &content, &error);
  });
  if (status == kRaised) return nullptr;
  if (status == SHMB_OK && object != nullptr) return PyTuple_Pack(2, static_cast<PyObject*>(object), Py_None);
  if (status == SHMB_OK) return raise(SHMB_E_INVALID, "the value of the reference is no object of Python");
  const Ref failure = known_failure(self);
  if (!failure) return nullptr;
  if (failure.get() != Py_None) return PyTuple_Pack(2, Py_None, failure.get());
  return raise(error);
}

void deallocate(PyObject* self) {
  const KeptException kept;
  close_handle(as<Reference>(self));
  Py_XDECREF(as_object(as<Reference>(self)->world));
  free_object(self);
}

PyMethodDef methods[] = {{"info", info, METH_NOARGS, nullptr}, {"fetch", fetch, METH_O, nullptr},
                         {"type", type, METH_O, nullptr},      {"created", created, METH_NOARGS, nullptr},
                         {"local", local, METH_O, nullptr},    {nullptr, nullptr, 0, nullptr}};
PyType_Slot slots[] = {{Py_tp_doc, const_cast<char*>("A reference to a value of a worker.")},
                       {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
                       {Py_tp_methods, methods},
                       {0, nullptr}};
PyType_Spec spec = {"shmbroker._core.RemoteReference", sizeof(Reference), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, slots};

}  // namespace

void Reference::finish() {
  shmb_reference* const ended = std::exchange(handle, nullptr);
  const Unlocked unlocked;
  shmb_reference_free(ended);
}

PyObject* make_reference(World* world, shmb_reference* handle) {
  auto* const made = make_object<Reference>(types.reference);
  if (made == nullptr) {
    shmb_reference_free(handle);
    return nullptr;
  }
  made->handle = handle;
  made->world = as<World>(Py_NewRef(as_object(world)));
  return as_object(made);
}

bool add_reference(PyObject* module) { return add_type(module, spec, types.reference); }

}  // namespace shmb::python::remote
