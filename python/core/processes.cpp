// SPDX-License-Identifier: Apache-2.0
// The parent's side of spawn. The package keeps every set of ranks that runs until it was joined or the interpreter
// ends. So the end of the object waits for nothing, except where the interpreter ends without its exit functions.
#include <string>
#include <vector>

#include "python/core/objects.hpp"
#include "python/core/spawn.hpp"

namespace shmb::python {

namespace {

struct Processes {
  PyObject_HEAD shmb_processes* handle;
  int32_t count;
};

PyTypeObject* type = nullptr;

// Texts of a list, for as long as the list lives, with the null pointer that C wants at the end.
bool to_texts(PyObject* list, const char* what, std::vector<const char*>& texts) {
  if (list == Py_None) return true;
  const Py_ssize_t count = PySequence_Size(list);
  for (Py_ssize_t i = 0; i < count; ++i) {
    const Ref one(PySequence_GetItem(list, i));
    const char* text = nullptr;
    if (!one || !to_text(one.get(), what, text)) return false;
    texts.push_back(text);
  }
  texts.push_back(nullptr);
  return count >= 0;
}

// In the copy of the interpreter. Nothing returns from here into the frames of the parent.
int run_entry(void* entry) {
  PyOS_AfterFork_Child();
  const Ref status(PyObject_CallNoArgs(static_cast<PyObject*>(entry)));
  if (!status) {
    PyErr_Print();
    return 1;
  }
  return static_cast<int>(PyLong_AsLong(status.get()));
}

// start_ranks(method, flags, nprocs, shards, shard, stdio, stdio_path, function, arguments, command, environment,
// directory, group, group_limit, socket, master_addr, master_port, voluntary, grace, start_timeout, timeout, entry)
PyObject* start_ranks(PyObject*, PyObject* arguments) {
  shmb_spawn_options options{};
  options.size = sizeof options;
  PyObject *command = nullptr, *environment = nullptr, *entry = nullptr;
  Py_ssize_t length = 0;
  unsigned long long limit = 0;
  long long voluntary = 0, grace = 0, start_timeout = 0, timeout = 0;
  const char* payload = nullptr;
  if (PyArg_ParseTuple(arguments, "IIiiiIzzy#OOzzKzzILLLLO", &options.method, &options.flags, &options.nprocs,
                       &options.shards, &options.shard, &options.stdio, &options.stdio_path, &options.function,
                       &payload, &length, &command, &environment, &options.directory, &options.group, &limit,
                       &options.socket, &options.master_addr, &options.master_port, &voluntary, &grace, &start_timeout,
                       &timeout, &entry) == 0)
    return nullptr;
  std::vector<const char*> words, variables;
  if (!to_texts(command, "a word of the command", words) ||
      !to_texts(environment, "a variable of the environment", variables))
    return nullptr;
  options.arguments = payload;
  options.arguments_length = static_cast<std::uint64_t>(length);
  options.command = words.empty() ? nullptr : words.data();
  options.environment = variables.empty() ? nullptr : variables.data();
  options.group_limit_bytes = limit;
  options.voluntary_ns = voluntary, options.grace_ns = grace;
  options.start_timeout_ns = start_timeout, options.timeout_ns = timeout;
  options.entry = run_entry;
  options.context = entry;
  auto* const made = make_object<Processes>(type);
  if (made == nullptr) return nullptr;
  made->count = options.nprocs;
  shmb_error failure{};
  int status = 0;
  if (options.method == SHMB_START_FORK) {
    // The copies need the interpreter as it is between two instructions of this thread, so it keeps the GIL.
    PyOS_BeforeFork();
    status = shmb_spawn(&options, &made->handle, &failure);
    PyOS_AfterFork_Parent();
  } else {
    const Unlocked unlocked;
    status = shmb_spawn(&options, &made->handle, &failure);
  }
  if (status == SHMB_OK) return as_object(made);
  Py_DECREF(as_object(made));
  return raise(failure);
}

void deallocate(PyObject* self) {
  auto* const object = as<Processes>(self);
  if (object->handle != nullptr) {
    const KeptException kept;
    const Unlocked unlocked;
    (void)shmb_processes_end(object->handle, 0, nullptr);  // nothing, where they have ended, and in a forked child
    shmb_processes_free(object->handle);
  }
  free_object(self);
}

// join(wait, voluntary) -> 0: running, 1: succeeded, 2: failed
PyObject* join(PyObject* self, PyObject* arguments) {
  long long wait = 0, voluntary = 0;
  if (PyArg_ParseTuple(arguments, "LL", &wait, &voluntary) == 0) return nullptr;
  std::uint32_t state = 0;
  shmb_error failure{};
  const int status = wait_for(
      wait,
      [&](std::int64_t left) {
        return shmb_processes_join(as<Processes>(self)->handle, left, voluntary, &state, &failure);
      },
      [] { return false; });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return raise(failure);
  return PyLong_FromUnsignedLong(state);
}

PyObject* end(PyObject* self, PyObject* at_once) {
  const int now = PyObject_IsTrue(at_once);
  shmb_error failure{};
  if (now < 0) return nullptr;
  if (shmb_processes_end(as<Processes>(self)->handle, static_cast<std::uint32_t>(now), &failure) != SHMB_OK)
    return raise(failure);
  Py_RETURN_NONE;
}

PyObject* pids(PyObject* self, PyObject*) {
  std::vector<int32_t> found(static_cast<std::size_t>(as<Processes>(self)->count));
  std::size_t count = 0;
  shmb_error failure{};
  if (shmb_processes_pids(as<Processes>(self)->handle, found.data(), found.size(), &count, &failure) != SHMB_OK)
    return raise(failure);
  Ref list(PyList_New(0));
  for (std::size_t i = 0; list && i < count; ++i) {
    const Ref one(PyLong_FromLong(found[i]));
    if (!one || PyList_Append(list.get(), one.get()) != 0) return nullptr;
  }
  return list.release();
}

// result(local_rank) -> bytes; None: there is none
PyObject* result(PyObject* self, PyObject* local_rank) {
  const long rank = PyLong_AsLong(local_rank);
  if (rank == -1 && PyErr_Occurred() != nullptr) return nullptr;
  const void* data = nullptr;
  std::uint64_t length = 0;
  shmb_error failure{};
  const int status =
      shmb_processes_result(as<Processes>(self)->handle, static_cast<int32_t>(rank), &data, &length, &failure);
  if (status != SHMB_OK) return raise(failure);
  return PyBytes_FromStringAndSize(static_cast<const char*>(data), static_cast<Py_ssize_t>(length));
}

PyObject* describe(const shmb_failure& one) {
  const Ref message = decoded(one.message), kind = decoded(one.type), text = decoded(one.text);
  const Ref trace = decoded(one.trace), causes(PyList_New(0));
  char* torch = nullptr;
  if (!message || !kind || !text || !trace || !causes) return nullptr;
  for (std::size_t i = 0; i < one.cause_count; ++i) {
    const Ref cause_kind = decoded(one.causes[i].type), cause_text = decoded(one.causes[i].text);
    if (!cause_kind || !cause_text) return nullptr;
    const Ref cause(PyTuple_Pack(2, cause_kind.get(), cause_text.get()));
    if (!cause || PyList_Append(causes.get(), cause.get()) != 0) return nullptr;
  }
  shmb_error failure{};
  if (shmb_failure_message(&one, &torch, &failure) != SHMB_OK) return raise(failure);
  const Ref torch_text = decoded(torch);
  shmb_bytes_free(torch);
  if (!torch_text) return nullptr;
  const unsigned long long rss = one.max_rss_bytes;
  const long long user = one.user_ns, system = one.system_ns, time = one.time_ns;
  return Py_BuildValue("IiiiisIIILLKLOOOOOO", one.kind, one.rank, one.pid, one.exit_code, one.signal, one.signal_name,
                       one.core, one.ended_by_us, one.cut, user, system, rss, time, message.get(), kind.get(),
                       text.get(), trace.get(), causes.get(), torch_text.get());
}

PyObject* failures(PyObject* self, PyObject*) {
  shmb_processes* const handle = as<Processes>(self)->handle;
  Ref list(PyList_New(0));
  const std::size_t count = shmb_processes_failures(handle);
  for (std::size_t i = 0; list && i < count; ++i) {
    shmb_failure one{};
    one.size = sizeof one;
    shmb_error failure{};
    if (shmb_processes_failure(handle, i, &one, &failure) != SHMB_OK) return raise(failure);
    const Ref told(describe(one));
    if (!told || PyList_Append(list.get(), told.get()) != 0) return nullptr;
  }
  return list.release();
}

PyObject* descriptor(PyObject* self, PyObject*) {
  int fd = -1;
  shmb_error failure{};
  if (shmb_processes_descriptor(as<Processes>(self)->handle, &fd, &failure) != SHMB_OK) return raise(failure);
  return PyLong_FromLong(fd);
}

// session() -> a Session at the broker of the ranks
PyObject* session(PyObject* self, PyObject*) {
  shmb_session* handle = nullptr;
  shmb_error failure{};
  int status = 0;
  {
    const Unlocked unlocked;
    status = shmb_processes_session(as<Processes>(self)->handle, &handle, &failure);
  }
  if (status != SHMB_OK) return raise(failure);
  auto* const made = make_object<Session>(types.session);
  if (made == nullptr) {
    shmb_disconnect(handle);
    return nullptr;
  }
  made->handle = handle;
  return as_object(made);
}

PyMethodDef methods[] = {
    {"join", join, METH_VARARGS, nullptr},        {"end", end, METH_O, nullptr},
    {"pids", pids, METH_NOARGS, nullptr},         {"result", result, METH_O, nullptr},
    {"failures", failures, METH_NOARGS, nullptr}, {"fileno", descriptor, METH_NOARGS, nullptr},
    {"session", session, METH_NOARGS, nullptr},   {nullptr, nullptr, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
    {Py_tp_methods, methods},
    {0, nullptr},
};

PyType_Spec spec{"shmbroker._core.Processes", sizeof(Processes), 0,
                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

PyMethodDef functions[] = {
    {"start_ranks", start_ranks, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_processes(PyObject* module) {
  return add_type(module, spec, type) && PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace shmb::python
