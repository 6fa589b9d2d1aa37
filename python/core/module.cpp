// SPDX-License-Identifier: Apache-2.0
// The module shmbroker._core: its functions and types, and what it refuses to be imported into.
#include "python/core/objects.hpp"
#include "python/core/remote/remote.hpp"
#include "python/core/spawn.hpp"

namespace shmb::python {

Types types{};

void free_object(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(as_object(type));
}

bool add_type(PyObject* module, PyType_Spec& spec, PyTypeObject*& type) {
  if (type == nullptr) type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  if (type == nullptr) return false;
  return PyModule_AddType(module, type) == 0;
}

PyObject* call_python(const char* module, const char* function, PyObject* self, PyObject* const* given,
                      Py_ssize_t count, PyObject* names) {
  const Ref found(PyImport_ImportModule(module));
  const Ref callable(found ? PyObject_GetAttrString(found.get(), function) : nullptr);
  const Ref arguments(callable ? PyTuple_New(1 + count) : nullptr);
  const Ref keywords(arguments ? PyDict_New() : nullptr);
  if (!keywords) return nullptr;
  (void)PyTuple_SetItem(arguments.get(), 0, Py_NewRef(self));
  for (Py_ssize_t i = 0; i < count; ++i) (void)PyTuple_SetItem(arguments.get(), 1 + i, Py_NewRef(given[i]));
  const Py_ssize_t named = names != nullptr ? PyTuple_Size(names) : 0;
  for (Py_ssize_t i = 0; i < named; ++i)
    if (PyDict_SetItem(keywords.get(), PyTuple_GetItem(names, i), given[count + i]) != 0) return nullptr;
  return PyObject_Call(callable.get(), arguments.get(), keywords.get());
}

PyObject* to_array(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<2> array_names = signature("__array__", 1, 0, {"dtype", "copy"});
  const Arguments arguments(array_names, given, count, names);
  const Ref view(arguments ? PyMemoryView_FromObject(self) : nullptr);
  const Ref numpy(view ? PyImport_ImportModule("numpy") : nullptr);
  if (!numpy) return nullptr;
  const Ref made(PyObject_CallMethod(numpy.get(), "asarray", "(O)", view.get()));
  if (!made || arguments[0] == nullptr || arguments[0] == Py_None) return Ref::borrow(made.get()).release();
  return PyObject_CallMethod(made.get(), "astype", "(O)", arguments[0]);
}

PyObject* cannot_pickle(PyObject* self, PyObject*) {
  PyTypeObject* const type = Py_TYPE(self);
  const char* const way =
      type == types.region
          ? "send region.ticket(), which the other process gives to session.attach(), or send the region "
            "itself by a queue of session.queue() or pool.queue()"
      : type == types.slot         ? "a queue of its pool sends it, pool.queue(name).send(slot)"
      : type == types.pool         ? "the other process opens it by its name, session.open_pool(name)"
      : type == types.queue        ? "the other process opens it by its name, session.queue(name) or pool.queue(name)"
      : type == types.session      ? "the other process makes its own, shmbroker.connect()"
      : type == types.gpu_region   ? "the other process imports it by its name, session.gpu_import(name)"
      : type == types.message_part ? "pickle a copy of its bytes, bytes(part)"
                                   : "pickle a copy of its bytes, message.tobytes()";
  if (const Ref name(PyType_GetName(type)); name)
    PyErr_Format(PyExc_TypeError, "cannot pickle a %U of shmbroker: %s", name.get(), way);
  return nullptr;
}

namespace {

PyObject* find_memory(PyObject*, PyObject* buffer) { return find(buffer, false, 0); }

PyObject* status_name(PyObject*, PyObject* status) {
  std::uint32_t number = 0;
  return to_number(status, "a status", number) ? PyUnicode_FromString(shmb_status_name(static_cast<int>(number)))
                                               : nullptr;
}
PyObject* status_text(PyObject*, PyObject* status) {
  std::uint32_t number = 0;
  return to_number(status, "a status", number) ? PyUnicode_FromString(shmb_status_text(static_cast<int>(number)))
                                               : nullptr;
}

PyObject* sharing_strategies(PyObject*, PyObject*) {
  const Ref list(PyList_New(0));
  if (!list) return nullptr;
  for (const char* const* name = shmb_sharing_strategies(); *name != nullptr; ++name) {
    const Ref text(PyUnicode_FromString(*name));
    if (!text || PyList_Append(list.get(), text.get()) != 0) return nullptr;
  }
  return PyList_AsTuple(list.get());
}
PyObject* sharing_strategy(PyObject*, PyObject*) {
  const char* name = nullptr;
  shmb_error error{};
  return shmb_sharing_strategy(&name, &error) == SHMB_OK ? PyUnicode_FromString(name) : raise(error);
}
PyObject* set_sharing_strategy(PyObject*, PyObject* given) {
  const char* name = nullptr;
  shmb_error error{};
  if (!to_text(given, "the name of a sharing strategy", name)) return nullptr;
  if (shmb_set_sharing_strategy(name, &error) != SHMB_OK) return raise(error);
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"find", find_memory, METH_O, "The open slot or region in whose memory a buffer lies, or None."},
    {"group_variable", as_function(group_variable), METH_FASTCALL | METH_KEYWORDS,
     "The value of SHMBROKER_GROUP that makes a child process a member."},
    {"status_name", status_name, METH_O, "The name of a status."},
    {"status_text", status_text, METH_O, "The meaning of a status, in words."},
    {"sharing_strategies", sharing_strategies, METH_NOARGS, "The names of all sharing strategies."},
    {"sharing_strategy", sharing_strategy, METH_NOARGS, "The sharing strategy of this process."},
    {"set_sharing_strategy", set_sharing_strategy, METH_O, "Chooses what later handles keep besides their mapping."},
    {nullptr, nullptr, 0, nullptr}};

bool add_constants(PyObject* module) {
  const std::pair<const char*, long> constants[] = {
      {"EVENT_READY", SHMB_EVENT_BIT_READY}, {"EVENT_PUBLISHED", SHMB_EVENT_BIT_PUBLISHED},
      {"EVENT_GONE", SHMB_EVENT_BIT_GONE},   {"EVENT_APPEARED", SHMB_EVENT_BIT_APPEARED},
      {"EVENT_ENDED", SHMB_EVENT_BIT_ENDED}, {"EVENT_RECLAIM", SHMB_EVENT_BIT_RECLAIM},
      {"EVENT_GPU", SHMB_EVENT_BIT_GPU},     {"RIGHT_READ", SHMB_RIGHT_READ},
      {"RIGHT_WRITE", SHMB_RIGHT_WRITE},     {"RIGHT_SHARE", SHMB_RIGHT_SHARE}};
  for (const auto& [name, value] : constants)
    if (PyModule_AddIntConstant(module, name, value) != 0) return false;
  return PyModule_AddStringConstant(module, "version", shmb_version()) == 0;
}

int execute(PyObject* module) {
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
    PyErr_SetString(PyExc_ImportError,
                    "shmbroker works in the main interpreter alone, not in a subinterpreter: use processes or threads");
    return -1;
  }
  if (__builtin_strcmp(shmb_version(), SHMB_PACKAGE_VERSION) != 0) {
    PyErr_Format(PyExc_ImportError,
                 "the package shmbroker is version %s, but the library libshmbroker.so.0 that it found is version %s: "
                 "install the two together, and see that LD_LIBRARY_PATH names no other one",
                 SHMB_PACKAGE_VERSION, shmb_version());
    return -1;
  }
  const Ref tickets(PyImport_ImportModule("shmbroker.ticket"));
  if (!tickets) return -1;
  PyObject* const ticket = PyObject_GetAttrString(tickets.get(), "Ticket");
  if (ticket == nullptr) return -1;
  Py_XDECREF(std::exchange(types.ticket, ticket));
  const bool added = load_errors() && watch_forks() && add_values(module) && add_session(module) &&
                     add_region(module) && add_gpu_region(module) && add_pool(module) && add_slot(module) &&
                     add_part(module) && add_queue(module) && add_message(module) && add_processes(module) &&
                     add_rank(module) && remote::add_world(module) && remote::add_future(module) &&
                     remote::add_request(module) && remote::add_reference(module) && remote::add_copy(module) &&
                     add_constants(module);
  return added ? 0 : -1;
}

PyModuleDef_Slot slots[] = {{Py_mod_exec, reinterpret_cast<void*>(execute)}, {0, nullptr}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "shmbroker._core",
                          "The broker's handles as Python objects.",
                          0,
                          functions,
                          slots,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace
}  // namespace shmb::python

PyMODINIT_FUNC PyInit__core() { return PyModuleDef_Init(&shmb::python::definition); }
