// SPDX-License-Identifier: Apache-2.0
// RemoteRequest: what another worker asks, until it is answered, at once or later, by any thread.
#include <vector>

#include "python/core/remote/remote.hpp"

namespace shmb::python::remote {

namespace {

shmb_request* open_request(PyObject* self) {
  if (as<Request>(self)->handle == nullptr) return raise(SHMB_E_CLOSED, "the request was answered before");
  return as<Request>(self)->handle;
}

// From here on the library has it.
shmb_request* spend(PyObject* self) { return std::exchange(as<Request>(self)->handle, nullptr); }

PyObject* get_kind(PyObject* self, void*) {
  shmb_request* const request = open_request(self);
  return request == nullptr ? nullptr : PyLong_FromUnsignedLong(shmb_request_get_kind(request));
}
PyObject* get_origin(PyObject* self, void*) {
  shmb_request* const request = open_request(self);
  return request == nullptr ? nullptr : PyLong_FromLong(shmb_request_from(request));
}
PyObject* get_function(PyObject* self, void*) {
  shmb_request* const request = open_request(self);
  return request == nullptr ? nullptr : PyUnicode_FromString(shmb_request_function(request));
}
// Of a fetch: what answer_object() was given.
PyObject* get_object(PyObject* self, void*) {
  shmb_request* const request = open_request(self);
  if (request == nullptr) return nullptr;
  auto* const object = static_cast<PyObject*>(shmb_request_object(request));
  return Py_NewRef(object != nullptr ? object : Py_None);
}

// take() -> (data, regions, references), once
PyObject* take_content(PyObject* self, PyObject*) {
  shmb_request* const request = open_request(self);
  return request == nullptr ? nullptr : take(as<Request>(self)->world, shmb_request_content(request)).release();
}

// answer(data, regions, references)
PyObject* answer(PyObject* self, PyObject* arguments) {
  PyObject *data = nullptr, *regions = nullptr, *references = nullptr;
  if (open_request(self) == nullptr || PyArg_ParseTuple(arguments, "OOO", &data, &regions, &references) == 0)
    return nullptr;
  const Payload payload(data, regions, references);
  if (!payload) return nullptr;
  shmb_request* const request = spend(self);
  if (request == nullptr) return open_request(self), nullptr;  // a buffer's code has answered it
  shmb_error error{};
  int status = 0;
  {
    const Unlocked unlocked;
    status = shmb_request_answer(request, payload.c(), &error);
  }
  if (status != SHMB_OK) return raise(error);
  Py_RETURN_NONE;
}

// answer_object(object, type): the value of a creation
PyObject* answer_object(PyObject* self, PyObject* arguments) {
  PyObject* object = nullptr;
  const char* type = nullptr;
  if (open_request(self) == nullptr || PyArg_ParseTuple(arguments, "Os", &object, &type) == 0) return nullptr;
  shmb_request* const request = spend(self);
  Py_INCREF(object);  // until drop(), which the library calls also where the creation has failed meanwhile
  shmb_error error{};
  int status = 0;
  {
    const Unlocked unlocked;
    status = shmb_request_answer_object(request, object, type, &error);
  }
  if (status != SHMB_OK) return raise(error);
  Py_RETURN_NONE;
}

// fail(status, type, text, trace, causes), the texts as bytes
PyObject* fail(PyObject* self, PyObject* arguments) {
  shmb_remote_failure failure{};
  failure.size = sizeof failure;
  PyObject* causes = nullptr;
  if (open_request(self) == nullptr ||
      PyArg_ParseTuple(arguments, "iyyyO", &failure.status, &failure.type, &failure.text, &failure.trace, &causes) == 0)
    return nullptr;
  std::vector<shmb_cause> chain;
  const Py_ssize_t count = PySequence_Size(causes);
  for (Py_ssize_t i = 0; i < count; ++i) {
    const Ref one(PySequence_GetItem(causes, i));
    shmb_cause cause{};
    if (!one || PyArg_ParseTuple(one.get(), "yy", &cause.type, &cause.text) == 0) return nullptr;
    chain.push_back(cause);
  }
  failure.causes = chain.data();
  failure.cause_count = chain.size();
  shmb_request* const request = spend(self);
  shmb_error error{};
  int status = 0;
  {
    const Unlocked unlocked;
    status = shmb_request_fail(request, &failure, &error);
  }
  if (status != SHMB_OK) return raise(error);
  Py_RETURN_NONE;
}

void deallocate(PyObject* self) {
  const KeptException kept;
  if (shmb_request* const request = spend(self)) {
    shmb_remote_failure failure{};
    failure.size = sizeof failure;
    failure.status = SHMB_E_INVALID;
    failure.text = "the worker dropped the call without an answer";
    const Unlocked unlocked;
    (void)shmb_request_fail(request, &failure, nullptr);
  }
  Py_XDECREF(as_object(as<Request>(self)->world));
  free_object(self);
}

PyGetSetDef properties[] = {{"kind", get_kind, nullptr, nullptr, nullptr},
                            {"origin", get_origin, nullptr, nullptr, nullptr},
                            {"function", get_function, nullptr, nullptr, nullptr},
                            {"object", get_object, nullptr, nullptr, nullptr},
                            {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyMethodDef methods[] = {{"take", take_content, METH_NOARGS, nullptr},
                         {"answer", answer, METH_VARARGS, nullptr},
                         {"answer_object", answer_object, METH_VARARGS, nullptr},
                         {"fail", fail, METH_VARARGS, nullptr},
                         {nullptr, nullptr, 0, nullptr}};
PyType_Slot slots[] = {{Py_tp_doc, const_cast<char*>("A request of another worker.")},
                       {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
                       {Py_tp_methods, methods},
                       {Py_tp_getset, properties},
                       {0, nullptr}};
PyType_Spec spec = {"shmbroker._core.RemoteRequest", sizeof(Request), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, slots};

}  // namespace

PyObject* make_request(World* world, shmb_request* handle) {
  auto* const made = make_object<Request>(types.request);
  if (made == nullptr) {
    shmb_remote_failure failure{};
    failure.size = sizeof failure;
    failure.status = SHMB_E_NO_MEMORY;
    failure.text = "the worker has no memory for the call";
    (void)shmb_request_fail(handle, &failure, nullptr);
    return nullptr;
  }
  made->handle = handle;
  made->world = as<World>(Py_NewRef(as_object(world)));
  return as_object(made);
}

bool add_request(PyObject* module) { return add_type(module, spec, types.request); }

}  // namespace shmb::python::remote
