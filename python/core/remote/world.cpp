// SPDX-License-Identifier: Apache-2.0
// RemoteWorld: this process as a worker. Its handler is called by the library's threads, one request each.
#include "python/core/remote/remote.hpp"

namespace shmb::python::remote {

Types types{};

namespace {

World* open_world(PyObject* self) {
  auto* const world = as<World>(self);
  if (!world->calls.closed && world->handle != nullptr) return world;
  return raise(SHMB_E_CLOSED, "this worker has not joined its world yet, or has left it");
}

// Any thread of the library. An exception of the handler has no caller: it answers its requests itself.
void serve(void* context, shmb_request* handle) {
  const Locked locked;
  auto* const world = static_cast<World*>(context);
  or_stay([&] {
    PyObject* const request = make_request(world, handle);
    PyObject* const none = request ? PyObject_CallFunctionObjArgs(world->handler, request, nullptr) : nullptr;
    if (none == nullptr) PyErr_WriteUnraisable(world->handler);
    Py_XDECREF(none);
    Py_XDECREF(request);
  });
}

void drop(void*, void* object) {
  const Locked locked;
  or_stay([&] { Py_DECREF(static_cast<PyObject*>(object)); });
}

// join(handler, name, address, rank, world_size, threads, socket, timeout, call_timeout) -> RemoteWorld
PyObject* join(PyObject*, PyObject* arguments) {
  shmb_remote_options options{};
  options.size = sizeof options;
  PyObject* handler = nullptr;
  long long timeout = 0, call_timeout = 0;
  if (PyArg_ParseTuple(arguments, "OzziiIzLL", &handler, &options.name, &options.address, &options.rank,
                       &options.world_size, &options.threads, &options.socket, &timeout, &call_timeout) == 0)
    return nullptr;
  auto* const world = make_object<World>(types.world);
  if (world == nullptr) return nullptr;
  const Ref made(as_object(world));
  world->handler = Py_NewRef(handler);
  options.call_timeout_ns = call_timeout;
  options.request = serve;
  options.drop = drop;
  options.context = world;
  // Never given back: a thread that the end of the world leaves behind in a function may still look at it.
  Py_INCREF(as_object(world));
  shmb_error error{};
  const int status = wait_for(
      timeout,
      [&](std::int64_t left) {
        options.timeout_ns = left;
        return shmb_remote_init(&options, &world->handle, &error);
      },
      [] { return false; });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return raise(error);
  return Py_NewRef(made.get());
}

// The common part of call and create: `send` is the C function, which gives a new T to `wrap`.
template <class T, auto send, auto wrap>
PyObject* ask(PyObject* self, PyObject* arguments) {
  World* const world = open_world(self);
  int to = 0;
  const char* function = nullptr;
  PyObject *data = nullptr, *regions = nullptr, *references = nullptr;
  unsigned flags = 0;
  long long timeout = 0;
  if (world == nullptr ||
      PyArg_ParseTuple(arguments, "isOOOIL", &to, &function, &data, &regions, &references, &flags, &timeout) == 0)
    return nullptr;
  const Payload payload(data, regions, references);
  if (!payload) return nullptr;
  T* made = nullptr;
  shmb_error error{};
  int status = 0;
  {
    const Call<World> use(world);
    const Unlocked unlocked;
    status = send(world->handle, to, function, payload.c(), flags, timeout, &made, &error);
  }
  return status == SHMB_OK ? wrap(world, made) : raise(error);
}

// call(to, function, data, regions, references, flags, timeout) -> RemoteFuture
PyObject* call(PyObject* self, PyObject* arguments) {
  return ask<shmb_future, shmb_remote_call, make_future>(self, arguments);
}

// create(to, function, data, regions, references, flags, timeout) -> RemoteReference
PyObject* create(PyObject* self, PyObject* arguments) {
  return ask<shmb_reference, shmb_remote_create, make_reference>(self, arguments);
}

// own(object, type) -> RemoteReference to an object of this process
PyObject* own(PyObject* self, PyObject* arguments) {
  World* const world = open_world(self);
  PyObject* object = nullptr;
  const char* type = nullptr;
  if (world == nullptr || PyArg_ParseTuple(arguments, "Os", &object, &type) == 0) return nullptr;
  shmb_reference* reference = nullptr;
  shmb_error error{};
  if (shmb_remote_own(world->handle, object, type, &reference, &error) != SHMB_OK) return raise(error);
  Py_INCREF(object);  // until drop()
  return make_reference(world, reference);
}

// shutdown(local, keep_references, report_leaks, timeout) -> the number of leaks
PyObject* shutdown(PyObject* self, PyObject* arguments) {
  World* const world = open_world(self);
  shmb_remote_shutdown_options options{};
  options.size = sizeof options;
  int local = 0, keep = 0, report = 0;
  long long timeout = 0;
  if (world == nullptr || PyArg_ParseTuple(arguments, "pppL", &local, &keep, &report, &timeout) == 0) return nullptr;
  options.local = local != 0, options.keep_references = keep != 0, options.report_leaks = report != 0;
  std::uint32_t leaks = 0;
  shmb_error error{};
  const int status = wait_in(world, timeout, [&](std::int64_t left) {
    options.timeout_ns = left;
    return shmb_remote_shutdown(world->handle, &options, &leaks, &error);
  });
  if (status == kRaised) return nullptr;
  return status == SHMB_OK ? PyLong_FromUnsignedLong(leaks) : raise(error);
}

// close(): leaves the world at once where shutdown() has not, and ends the threads.
PyObject* close(PyObject* self, PyObject*) {
  close_handle(as<World>(self));
  Py_RETURN_NONE;
}

// worker(rank, name) -> (rank, name, state, life)
PyObject* worker(PyObject* self, PyObject* arguments) {
  World* const world = open_world(self);
  int rank = -1;
  const char* name = nullptr;
  if (world == nullptr || PyArg_ParseTuple(arguments, "iz", &rank, &name) == 0) return nullptr;
  shmb_worker facts{};
  facts.size = sizeof facts;
  shmb_error error{};
  if (shmb_remote_worker(world->handle, rank, name, &facts, &error) != SHMB_OK) return raise(error);
  return Py_BuildValue("isII", facts.rank, facts.name, facts.state, facts.life);
}

// counters() -> (owned, users, held, pending_calls, waiting, running)
PyObject* counters(PyObject* self, PyObject*) {
  World* const world = open_world(self);
  if (world == nullptr) return nullptr;
  shmb_remote_counters facts{};
  facts.size = sizeof facts;
  shmb_error error{};
  const int status = wait_in(world, SHMB_FOREVER,
                             [&](std::int64_t) { return shmb_remote_get_counters(world->handle, &facts, &error); });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return raise(error);
  const unsigned long long owned = facts.owned, users = facts.users, held = facts.held;
  const unsigned long long pending = facts.pending_calls, waiting = facts.waiting, running = facts.running;
  return Py_BuildValue("KKKKKK", owned, users, held, pending, waiting, running);
}

PyObject* set_timeout(PyObject* self, PyObject* nanoseconds) {
  World* const world = open_world(self);
  const long long timeout = PyLong_AsLongLong(nanoseconds);
  if (world == nullptr || (timeout == -1 && PyErr_Occurred() != nullptr)) return nullptr;
  shmb_error error{};
  if (shmb_remote_set_timeout(world->handle, timeout, &error) != SHMB_OK) return raise(error);
  Py_RETURN_NONE;
}

// region(length) -> a new Region of the world's group
PyObject* region(PyObject* self, PyObject* length) {
  World* const world = open_world(self);
  const unsigned long long bytes = PyLong_AsUnsignedLongLong(length);
  if (world == nullptr || PyErr_Occurred() != nullptr) return nullptr;
  PyObject* const session = session_of(world);
  if (session == nullptr) return nullptr;
  shmb_region* handle = nullptr;
  shmb_error error{};
  int status = 0;
  {
    const Call<World> use(world);
    const Unlocked unlocked;
    status = shmb_remote_region(world->handle, bytes, &handle, &error);
  }
  return status == SHMB_OK ? make_region(as<Session>(session), handle, nullptr) : raise(error);
}

PyObject* session(PyObject* self, PyObject*) {
  World* const world = open_world(self);
  return world == nullptr ? nullptr : Py_XNewRef(session_of(world));
}

PyObject* get_rank(PyObject* self, void*) {
  World* const world = open_world(self);
  return world == nullptr ? nullptr : PyLong_FromLong(shmb_remote_rank(world->handle));
}
PyObject* get_size(PyObject* self, void*) {
  World* const world = open_world(self);
  return world == nullptr ? nullptr : PyLong_FromLong(shmb_remote_world_size(world->handle));
}

void deallocate(PyObject* self) {
  const KeptException kept;
  auto* const world = as<World>(self);
  close_handle(world);
  Py_CLEAR(world->handler);
  free_object(self);
}

PyGetSetDef properties[] = {{"rank", get_rank, nullptr, nullptr, nullptr},
                            {"size", get_size, nullptr, nullptr, nullptr},
                            {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyMethodDef methods[] = {{"call", call, METH_VARARGS, nullptr},
                         {"create", create, METH_VARARGS, nullptr},
                         {"own", own, METH_VARARGS, nullptr},
                         {"shutdown", shutdown, METH_VARARGS, nullptr},
                         {"close", close, METH_NOARGS, nullptr},
                         {"worker", worker, METH_VARARGS, nullptr},
                         {"counters", counters, METH_NOARGS, nullptr},
                         {"set_timeout", set_timeout, METH_O, nullptr},
                         {"region", region, METH_O, nullptr},
                         {"session", session, METH_NOARGS, nullptr},
                         {nullptr, nullptr, 0, nullptr}};
PyType_Slot slots[] = {{Py_tp_doc, const_cast<char*>("This process as a worker of a world.")},
                       {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
                       {Py_tp_methods, methods},
                       {Py_tp_getset, properties},
                       {0, nullptr}};
PyType_Spec spec = {"shmbroker._core.RemoteWorld", sizeof(World), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, slots};
PyMethodDef functions[] = {{"join_world", join, METH_VARARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};

}  // namespace

void World::finish() {
  shmb_remote* const ended = std::exchange(handle, nullptr);
  if (ended == nullptr) return;
  {
    const Unlocked unlocked;
    shmb_remote_free(ended);
  }
  // Its connection goes with the last region of it.
  if (session != nullptr) Py_DECREF(as_object(std::exchange(session, nullptr)));
}

PyObject* session_of(World* world) {
  if (world->session != nullptr) return as_object(world->session);
  if (open_world(as_object(world)) == nullptr) return nullptr;
  shmb_session* handle = nullptr;
  shmb_error error{};
  if (shmb_remote_session(world->handle, &handle, &error) != SHMB_OK) return raise(error);
  auto* const made = make_object<Session>(python::types.session);
  if (made == nullptr) {
    shmb_disconnect(handle);
    return nullptr;
  }
  made->handle = handle;
  world->session = made;
  return as_object(made);
}

bool add_world(PyObject* module) {
  return add_type(module, spec, types.world) && PyModule_AddFunctions(module, functions) == 0 &&
         PyModule_AddIntConstant(module, "REQUEST_CALL", SHMB_REQUEST_CALL) == 0 &&
         PyModule_AddIntConstant(module, "REQUEST_CREATE", SHMB_REQUEST_CREATE) == 0 &&
         PyModule_AddIntConstant(module, "REQUEST_FETCH", SHMB_REQUEST_FETCH) == 0 &&
         PyModule_AddIntConstant(module, "CALL_ON_OBJECT", SHMB_CALL_ON_OBJECT) == 0;
}

}  // namespace shmb::python::remote
