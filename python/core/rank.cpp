// SPDX-License-Identifier: Apache-2.0
// A rank's side of spawn: who it is, how its function ended, and what ranks ask of each other.
#include <unistd.h>

#include <vector>

#include "python/core/objects.hpp"
#include "python/core/spawn.hpp"

namespace shmb::python {

namespace {

PyObject* preload = nullptr;  // while the fork server enters
bool copied = false;          // the interpreter of a rank is a copy of the fork server's

// In the fork server: what it does once for all ranks. It reports a failure by itself.
void run_preload() {
  if (const Ref done(PyObject_CallNoArgs(preload)); !done) PyErr_Print();
  copied = true;
  PyOS_BeforeFork();
}

// rank_enter(preload) -> (rank, local_rank, world_size, local_world_size, shard, function, arguments); None: no rank
PyObject* enter(PyObject*, PyObject* what) {
  preload = what;
  shmb_rank_info info{};
  info.size = sizeof info;
  shmb_error failure{};
  // With the GIL: the fork server may have no second thread, and its copies need the interpreter at rest.
  const int status = shmb_rank_enter(what == Py_None ? nullptr : run_preload, &info, &failure);
  preload = nullptr;
  if (std::exchange(copied, false)) PyOS_AfterFork_Child();
  if (status == SHMB_E_NOT_FOUND) Py_RETURN_NONE;
  if (status != SHMB_OK) return raise(failure);
  return Py_BuildValue("iiiiisy#", info.rank, info.local_rank, info.world_size, info.local_world_size, info.shard,
                       info.function, static_cast<const char*>(info.arguments),
                       static_cast<Py_ssize_t>(info.arguments_length));
}

// environment() -> the variables as C has them: os.environ is a copy from the interpreter's start
PyObject* environment(PyObject*, PyObject*) {
  Ref list(PyList_New(0));
  for (char** one = environ; list && one != nullptr && *one != nullptr; ++one) {
    const Ref variable(PyBytes_FromString(*one));
    if (!variable || PyList_Append(list.get(), variable.get()) != 0) return nullptr;
  }
  return list.release();
}

PyObject* finish(PyObject*, PyObject* arguments) {
  const char* data = nullptr;
  Py_ssize_t length = 0;
  if (PyArg_ParseTuple(arguments, "y#", &data, &length) == 0) return nullptr;
  shmb_error failure{};
  int status = 0;
  {
    const Unlocked unlocked;
    status = shmb_rank_finish(data, static_cast<std::uint64_t>(length), &failure);
  }
  if (status != SHMB_OK) return raise(failure);
  Py_RETURN_NONE;
}

PyObject* throwing(PyObject*, PyObject* arguments) {
  const char* kind = nullptr;
  if (PyArg_ParseTuple(arguments, "y", &kind) == 0) return nullptr;
  (void)shmb_rank_throwing(kind, nullptr);  // does not wait; rank_raise reports it again
  Py_RETURN_NONE;
}

// rank_raise(type, text, trace, causes): bytes without NUL; causes: a list of pairs, the last one first
PyObject* raise_in_rank(PyObject*, PyObject* arguments) {
  shmb_raised raised{};
  raised.size = sizeof raised;
  PyObject* pairs = nullptr;
  if (PyArg_ParseTuple(arguments, "yyyO", &raised.type, &raised.text, &raised.trace, &pairs) == 0) return nullptr;
  std::vector<shmb_cause> causes;
  const Py_ssize_t count = PyList_Size(pairs);
  if (count < 0) return nullptr;
  for (Py_ssize_t i = 0; i < count; ++i) {
    shmb_cause one{};
    if (PyArg_ParseTuple(PyList_GetItem(pairs, i), "yy", &one.type, &one.text) == 0) return nullptr;
    causes.push_back(one);
  }
  raised.causes = causes.data();
  raised.cause_count = causes.size();
  shmb_error failure{};
  int status = 0;
  {
    const Unlocked unlocked;
    status = shmb_rank_raise_from(&raised, &failure);
  }
  if (status != SHMB_OK) return raise(failure);
  Py_RETURN_NONE;
}

// rank_lend(region, rights, uses, timeout) -> bytes: a ticket that ends with the parent's set of ranks
PyObject* lend(PyObject*, PyObject* arguments) {
  PyObject* object = nullptr;
  unsigned rights = 0, uses = 0;
  long long timeout = 0;
  if (PyArg_ParseTuple(arguments, "OIIL", &object, &rights, &uses, &timeout) == 0) return nullptr;
  if (Py_TYPE(object) != types.region) return PyErr_SetString(PyExc_TypeError, "a Region is asked for"), nullptr;
  auto* const region = as<Region>(object);
  if (region->calls.closed) return raise_closed("region");
  std::uint8_t ticket[16];
  shmb_error failure{};
  const int status = wait_in(region, timeout, [&](std::int64_t left) {
    return shmb_rank_lend(region->handle, rights, uses, 0, left, ticket, nullptr, &failure);
  });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return raise(failure);
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(ticket), sizeof ticket);
}

struct Bytes {  // memory that the library has allocated
  void* data = nullptr;
  std::uint64_t length = 0;
  ~Bytes() { shmb_bytes_free(data); }
  PyObject* python() const {
    return PyBytes_FromStringAndSize(static_cast<const char*>(data), static_cast<Py_ssize_t>(length));
  }
};

template <class Make>
bool ask(std::int64_t wait, Make&& make) {
  shmb_error failure{};
  const int status = wait_for(wait, [&](std::int64_t left) { return make(left, &failure); }, [] { return false; });
  if (status != kRaised && status != SHMB_OK) raise(failure);
  return status == SHMB_OK;
}

PyObject* barrier(PyObject*, PyObject* arguments) {
  const char* name = nullptr;
  long long wait = 0;
  if (PyArg_ParseTuple(arguments, "sL", &name, &wait) == 0) return nullptr;
  if (!ask(wait, [&](std::int64_t left, shmb_error* failure) { return shmb_rank_barrier(name, left, failure); }))
    return nullptr;
  Py_RETURN_NONE;
}

PyObject* broadcast(PyObject*, PyObject* arguments) {
  const char *name = nullptr, *value = nullptr;
  int root = 0;
  Py_ssize_t length = 0;
  long long wait = 0;
  if (PyArg_ParseTuple(arguments, "siz#L", &name, &root, &value, &length, &wait) == 0) return nullptr;
  Bytes out;
  if (!ask(wait, [&](std::int64_t left, shmb_error* failure) {
        return shmb_rank_broadcast(name, root, value, static_cast<std::uint64_t>(length), left, &out.data, &out.length,
                                   failure);
      }))
    return nullptr;
  return out.python();
}

PyObject* all_gather(PyObject*, PyObject* arguments) {
  const char *name = nullptr, *value = nullptr;
  int count = 0;
  Py_ssize_t length = 0;
  long long wait = 0;
  if (PyArg_ParseTuple(arguments, "siy#L", &name, &count, &value, &length, &wait) == 0) return nullptr;
  Bytes out, places;
  std::uint64_t* offsets = nullptr;
  if (!ask(wait, [&](std::int64_t left, shmb_error* failure) {
        return shmb_rank_all_gather(name, value, static_cast<std::uint64_t>(length), left, &out.data, &offsets,
                                    failure);
      }))
    return nullptr;
  places.data = offsets;
  Ref list(PyList_New(0));
  for (int i = 0; list && i < count; ++i) {
    const Ref one(PyBytes_FromStringAndSize(static_cast<const char*>(out.data) + offsets[i],
                                            static_cast<Py_ssize_t>(offsets[i + 1] - offsets[i])));
    if (!one || PyList_Append(list.get(), one.get()) != 0) return nullptr;
  }
  return list.release();
}

PyObject* store_set(PyObject*, PyObject* arguments) {
  const char *key = nullptr, *value = nullptr;
  Py_ssize_t length = 0;
  if (PyArg_ParseTuple(arguments, "sy#", &key, &value, &length) == 0) return nullptr;
  if (!ask(0, [&](std::int64_t, shmb_error* failure) {
        return shmb_rank_set(key, value, static_cast<std::uint64_t>(length), failure);
      }))
    return nullptr;
  Py_RETURN_NONE;
}

PyObject* store_get(PyObject*, PyObject* arguments) {
  const char* key = nullptr;
  if (PyArg_ParseTuple(arguments, "s", &key) == 0) return nullptr;
  Bytes out;
  if (!ask(0, [&](std::int64_t, shmb_error* failure) { return shmb_rank_get(key, &out.data, &out.length, failure); }))
    return nullptr;
  return out.python();
}

PyObject* store_wait(PyObject*, PyObject* arguments) {
  const char* key = nullptr;
  long long wait = 0;
  if (PyArg_ParseTuple(arguments, "sL", &key, &wait) == 0) return nullptr;
  Bytes out;
  if (!ask(wait, [&](std::int64_t left, shmb_error* failure) {
        return shmb_rank_wait(key, left, &out.data, &out.length, failure);
      }))
    return nullptr;
  return out.python();
}

PyObject* store_compare_exchange(PyObject*, PyObject* arguments) {
  const char *key = nullptr, *expected = nullptr, *desired = nullptr;
  Py_ssize_t expected_length = 0, desired_length = 0;
  if (PyArg_ParseTuple(arguments, "sy#y#", &key, &expected, &expected_length, &desired, &desired_length) == 0)
    return nullptr;
  Bytes out;
  if (!ask(0, [&](std::int64_t, shmb_error* failure) {
        return shmb_rank_compare_exchange(key, expected, static_cast<std::uint64_t>(expected_length), desired,
                                          static_cast<std::uint64_t>(desired_length), &out.data, &out.length, failure);
      }))
    return nullptr;
  return out.python();
}

PyObject* store_delete(PyObject*, PyObject* arguments) {
  const char* key = nullptr;
  if (PyArg_ParseTuple(arguments, "s", &key) == 0) return nullptr;
  std::uint32_t existed = 0;
  if (!ask(0, [&](std::int64_t, shmb_error* failure) { return shmb_rank_delete(key, &existed, failure); }))
    return nullptr;
  return PyBool_FromLong(existed);
}

PyObject* store_add(PyObject*, PyObject* arguments) {
  const char* key = nullptr;
  long long amount = 0;
  if (PyArg_ParseTuple(arguments, "sL", &key, &amount) == 0) return nullptr;
  std::int64_t sum = 0;
  if (!ask(0, [&](std::int64_t, shmb_error* failure) { return shmb_rank_add(key, amount, &sum, failure); }))
    return nullptr;
  return PyLong_FromLongLong(sum);
}

PyMethodDef functions[] = {
    {"rank_enter", enter, METH_O, nullptr},
    {"environment", environment, METH_NOARGS, nullptr},
    {"rank_finish", finish, METH_VARARGS, nullptr},
    {"rank_throwing", throwing, METH_VARARGS, nullptr},
    {"rank_raise", raise_in_rank, METH_VARARGS, nullptr},
    {"rank_lend", lend, METH_VARARGS, nullptr},
    {"rank_barrier", barrier, METH_VARARGS, nullptr},
    {"rank_broadcast", broadcast, METH_VARARGS, nullptr},
    {"rank_all_gather", all_gather, METH_VARARGS, nullptr},
    {"rank_set", store_set, METH_VARARGS, nullptr},
    {"rank_get", store_get, METH_VARARGS, nullptr},
    {"rank_wait", store_wait, METH_VARARGS, nullptr},
    {"rank_compare_exchange", store_compare_exchange, METH_VARARGS, nullptr},
    {"rank_delete", store_delete, METH_VARARGS, nullptr},
    {"rank_add", store_add, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_rank(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }

}  // namespace shmb::python
