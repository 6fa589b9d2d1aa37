// SPDX-License-Identifier: Apache-2.0
// The objects of the package as the interpreter sees them, and their types. One interpreter has them: an import into a
// second one is refused, so the types are global.
//
// Every handle of the library belongs to one object. An object that uses memory of another one has a reference to it.
// So the interpreter may end them in any order, and takes no memory from under a buffer.
#pragma once

#include "python/core/values.hpp"
#include "python/core/wait.hpp"

struct shmb_gpu_region;

namespace shmb::python {

struct Types {
  PyTypeObject *session, *region, *gpu_region, *pool, *slot, *part, *queue, *message, *message_part;
  PyObject* ticket;  // shmbroker.ticket.Ticket
};
extern Types types;

struct Session {
  PyObject_HEAD PyObject* weak;
  shmb_session* handle;
  Calls calls;
  bool names_with_holders;  // default of name_with_holders= in create and create_pool
  void finish();
};

// Whether a name goes with its last holder: as the call says, else as the session does where no keep is given.
bool to_name_with_holders(Session* session, PyObject* said, const char* name, bool keep, std::uint64_t group,
                          bool& with_holders);

// The address range of an open slot or region, by which `find` finds it from a buffer.
struct Range {
  const std::byte* begin;
  std::uint64_t length;
};

struct Region {
  PyObject_HEAD PyObject* weak;
  shmb_region* handle;
  Calls calls;
  Session* session;  // may be closed; owned
  PyObject* name;    // owned; None
  Py_ssize_t exports;
  std::uint32_t release_flags;
  bool readonly;
  bool findable;  // `find` knows it: from its first buffer on
  void finish();
};

struct GpuRegion {
  PyObject_HEAD shmb_gpu_region* handle;
  Calls calls;
  void finish();
};

// A handle of a pool, owned by its Pool object, its slots and its queues together.
struct PoolHandle {
  shmb_pool* it;
  std::uint64_t id;
  std::uint32_t owners;
  bool grows;  // taking a slot may add memory, which takes time
  bool read_only;
};
PoolHandle* share(PoolHandle* pool);
void drop(PoolHandle* pool);

struct Pool {
  PyObject_HEAD PyObject* weak;
  PoolHandle* pool;  // nullptr: closed
  Session* session;  // owned
};

struct Slot {
  PyObject_HEAD PyObject* weak;
  PoolHandle* pool;  // nullptr: released
  shmb_slot slot;
  std::uint64_t offset, length;  // of the buffer in it
  Py_ssize_t exports;
  bool readonly;
  void finish();
};

// The bytes to send: all or some of `source`.
struct Part {
  PyObject_HEAD PyObject* source;
  std::uint64_t offset, length;  // length UINT64_MAX: to its end
  bool write;
};

struct Message;

struct Queue {
  PyObject_HEAD PyObject* weak;
  shmb_queue* handle;
  Calls calls;
  PoolHandle* pool;     // nullptr: a queue of its own
  PyObject* pool_of;    // the Pool object, or None; owned
  Session* session;     // owned
  PyObject* name;       // owned
  shmb_message* spare;  // for the next receive
  std::uint32_t kind, role, flags, inline_bytes, close_flags;
  std::uint32_t receiving;  // forks + 1: a thread is in a receive, where only one may be
  Message* borrowed;        // of an at_least_once queue, until it is done; not owned
  void finish();
};

struct Message {
  PyObject_HEAD PyObject* weak;
  shmb_message* handle;  // nullptr: done
  Queue* queue;          // owned
  Py_ssize_t exports;    // of all parts
  Py_ssize_t* of_part;   // of each part; kTaken where it was taken out. nullptr: none had one
};
inline constexpr Py_ssize_t kTaken = -1;

struct MessagePart {
  PyObject_HEAD Message* message;  // owned
  std::size_t number;
  shmb_part part;
};

template <class Object>
Object* as(PyObject* object) {
  return reinterpret_cast<Object*>(object);
}
template <class Object>
PyObject* as_object(Object* object) {
  return reinterpret_cast<PyObject*>(object);
}

// A zeroed object of a type that programs cannot make by calling it.
template <class Object>
Object* make_object(PyTypeObject* type) {
  auto* const allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  return as<Object>(allocate(type, 0));
}
void free_object(PyObject* object);

// Open slots and regions by their memory.
void remember(const std::byte* begin, std::uint64_t length, PyObject* object);
void forget(const std::byte* begin, PyObject* object);
PyObject* find(PyObject* buffer, bool in_pool, std::uint64_t pool);  // a new reference; None

// Each adds its type, or its functions. False: an exception is set.
bool add_session(PyObject* module);
bool add_region(PyObject* module);
bool add_gpu_region(PyObject* module);
bool add_pool(PyObject* module);
bool add_slot(PyObject* module);
bool add_part(PyObject* module);
bool add_queue(PyObject* module);
bool add_message(PyObject* module);
bool add_type(PyObject* module, PyType_Spec& spec, PyTypeObject*& type);

// The second form is for a caller that knows which rights the handle has.
PyObject* make_region(Session* session, shmb_region* handle, PyObject* name);
PyObject* make_region(Session* session, shmb_region* handle, PyObject* name, bool readonly);
PyObject* make_slot(PoolHandle* pool, const shmb_slot& slot, std::uint64_t offset, std::uint64_t length, bool readonly);
PyObject* make_message(Queue* queue, shmb_message* handle);
// A borrowed message goes back to its queue, which is closed. False: BufferError is set.
bool end_borrowed(Message* message);
bool release_slot(Slot* slot);

// Methods of other files than that of the type.
PyObject* session_create(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names);
PyObject* session_create_many(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names);
PyObject* session_attach(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names);
PyObject* session_attach_many(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names);
PyObject* session_gpu_import(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names);
PyObject* session_adopt(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names);
PyObject* session_create_group(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names);
PyObject* session_join(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names);
PyObject* session_leave(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names);
PyObject* session_end_group(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names);
PyObject* session_wait_group(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names);
PyObject* session_watch(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names);
PyObject* session_unwatch(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names);
PyObject* session_next_event(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names);
PyObject* session_create_pool(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names);
PyObject* session_open_pool(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names);
PyObject* session_queue(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names);
PyObject* pool_queue(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names);
PyObject* queue_send(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names);
PyObject* queue_send_many(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names);
// numpy.asarray() asks for it where an object gives no buffer. Without it, that would make an array of the object
// itself and hide why: a closed handle.
PyObject* to_array(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names);
// Handles are of one process. The refusal says how another process gets at what is behind one.
PyObject* cannot_pickle(PyObject* self, PyObject* protocol);
PyObject* group_variable(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names);

// The open session of a Session object, or nullptr with Closed set.
inline shmb_session* session_of(PyObject* self) {
  auto* const session = as<Session>(self);
  return session->calls.closed ? raise_closed("session") : session->handle;
}

// Calls a function of a module of the package with `self` before the arguments given.
PyObject* call_python(const char* module, const char* function, PyObject* self, PyObject* const* given,
                      Py_ssize_t count, PyObject* names);

}  // namespace shmb::python
