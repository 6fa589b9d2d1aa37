// SPDX-License-Identifier: Apache-2.0
// Queue: own ends of a queue. The threads of the process share it, but for what the library refuses to several: then
// the second thread gets Busy.
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "python/core/objects.hpp"

namespace shmb::python {

namespace {

constexpr const char* kKinds[] = {"as_is", "spsc", "mpmc", "broadcast"};
constexpr const char* kRoles[] = {"reader", "writer", "both"};

const char* role_name(std::uint32_t role) { return role >= 1 && role <= 3 ? kRoles[role - 1] : "none"; }

shmb_queue* queue_of(PyObject* self) {
  auto* const queue = as<Queue>(self);
  return queue->calls.closed ? raise_closed("queue") : queue->handle;
}

// The one receive at a time of a queue that is not for several threads.
class Receiving {
 public:
  explicit Receiving(Queue* queue)
      : queue_(queue),
        alone_(queue->kind != SHMB_QUEUE_MPMC || (queue->flags & SHMB_QUEUE_AT_LEAST_ONCE) != 0),
        mine_(forks + 1),
        free_(!alone_ || queue->receiving != mine_) {
    if (!free_)
      raise(SHMB_E_BUSY,
            "another thread receives from this queue: only an mpmc queue (without at_least_once) serves "
            "several threads of a process");
    else if (alone_) queue->receiving = mine_;
  }
  Receiving(const Receiving&) = delete;
  Receiving& operator=(const Receiving&) = delete;
  ~Receiving() {
    if (free_ && alone_ && queue_->receiving == mine_) queue_->receiving = 0;
  }
  explicit operator bool() const { return free_; }

 private:
  Queue* queue_;
  bool alone_;
  std::uint32_t mine_;
  bool free_;
};

// A message handle for a receive; given back to the queue when it was not filled.
class Handle {
 public:
  explicit Handle(Queue* queue) : queue_(queue), it_(std::exchange(queue->spare, nullptr)) {
    shmb_error error{};
    if (it_ == nullptr && shmb_message_new(&it_, &error) != SHMB_OK) raise(error);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (it_ == nullptr) return;
    if (queue_->spare == nullptr && !queue_->calls.closed) queue_->spare = it_;
    else shmb_message_free(it_);
  }
  shmb_message* get() const { return it_; }
  shmb_message* release() { return std::exchange(it_, nullptr); }
  explicit operator bool() const { return it_ != nullptr; }

 private:
  Queue* queue_;
  shmb_message* it_;
};

PyObject* whole_message(Queue* queue, Handle& message) { return make_message(queue, message.release()); }

// Receives one message. `give` makes of it the object that the caller gets.
PyObject* receive_for(PyObject* self, std::int64_t wait, PyObject* (*give)(Queue*, Handle&) = whole_message) {
  auto* const queue = as<Queue>(self);
  shmb_queue* const handle = queue_of(self);
  if (handle == nullptr) return nullptr;
  const Receiving receiving(queue);
  if (!receiving) return nullptr;
  Handle message(queue);
  if (!message) return nullptr;
  shmb_error error{};
  const int status = wait_in(queue, wait, [&](std::int64_t left) {
    return shmb_queue_receive(handle, message.get(), SHMB_RECEIVE_KEEP, left, &error);
  });
  if (status == kRaised) return nullptr;
  return status == SHMB_OK ? give(queue, message) : raise(error);
}

Signature<1> receive_names = signature("receive", 1, 0, {"timeout"});
PyObject* receive(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  const Arguments arguments(receive_names, given, count, names);
  std::int64_t wait = 0;
  if (!arguments || !to_wait(arguments[0], Wait::others, wait)) return nullptr;
  return receive_for(self, wait);
}

PyObject* get_nowait(PyObject* self, PyObject*) { return receive_for(self, SHMB_NO_WAIT); }

// The parts of a message, one after another. Failures of single parts are those of the message.
PyObject* copy_of(const shmb_message* message) {
  shmb_error error{};
  const std::size_t count = shmb_message_count(message);
  std::uint64_t bytes = 0;
  shmb_part part{};
  for (std::size_t i = 0; i < count; ++i) {
    if (shmb_message_part(message, i, &part, &error) != SHMB_OK) return raise(error);
    if (part.status != SHMB_OK)
      return raise(part.status, "part %zu of the message: %s", i, shmb_status_text(part.status));
    bytes += part.length;
  }
  PyObject* const copy = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes));
  char* to = copy != nullptr ? PyBytes_AsString(copy) : nullptr;
  for (std::size_t i = 0; copy != nullptr && i < count; ++i) {
    if (shmb_message_part(message, i, &part, &error) != SHMB_OK) break;
    if (part.length != 0) std::memcpy(to, part.data, part.length);
    to += part.length;
  }
  return copy;
}

PyObject* receive_bytes(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  const Arguments arguments(receive_names, given, count, names);
  std::int64_t wait = 0;
  if (!arguments || !to_wait(arguments[0], Wait::others, wait)) return nullptr;
  auto* const queue = as<Queue>(self);
  shmb_queue* const handle = queue_of(self);
  if (handle == nullptr) return nullptr;
  const Receiving receiving(queue);
  if (!receiving) return nullptr;
  const Handle message(queue);
  if (!message) return nullptr;
  const Call<Queue> call(queue);
  shmb_error error{};
  const std::uint32_t flags = queue->kind == SHMB_QUEUE_MPMC ? unsigned{SHMB_RECEIVE_KEEP} : 0U;
  const int status = wait_for(
      wait, [&](std::int64_t left) { return shmb_queue_receive(handle, message.get(), flags, left, &error); },
      [&] { return call.over(); });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return raise(error);
  PyObject* const copy = copy_of(message.get());
  (void)shmb_message_done(message.get(), &error);
  return copy;
}

// Whether the message is no more than some bytes, which cost less to copy than a Message does.
bool is_small(const shmb_message* message, shmb_part& part) {
  constexpr std::uint64_t kMost = 8192;
  return shmb_message_count(message) == 1 && shmb_message_type(message) == 0 &&
         shmb_message_part(message, 0, &part, nullptr) == SHMB_OK && part.status == SHMB_OK &&
         part.kind != SHMB_PART_REGION && part.length <= kMost;
}

// The bytes of a small message, or the message.
PyObject* bytes_or_message(Queue* queue, Handle& message) {
  shmb_part part{};
  if ((queue->flags & SHMB_QUEUE_AT_LEAST_ONCE) != 0 || !is_small(message.get(), part))
    return whole_message(queue, message);
  PyObject* const copy =
      PyBytes_FromStringAndSize(static_cast<const char*>(part.data), static_cast<Py_ssize_t>(part.length));
  if (copy == nullptr) {  // no memory for the copy: the message is not lost
    PyErr_Clear();
    return whole_message(queue, message);
  }
  shmb_error error{};
  (void)shmb_message_done(message.get(), &error);
  return copy;
}

PyObject* receive_small(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  const Arguments arguments(receive_names, given, count, names);
  std::int64_t wait = 0;
  if (!arguments || !to_wait(arguments[0], Wait::others, wait)) return nullptr;
  return receive_for(self, wait, bytes_or_message);
}

PyObject* receive_many(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<2> many_names = signature("receive_many", 2, 1, {"capacity", "timeout"});
  const Arguments arguments(many_names, given, count, names);
  std::uint32_t capacity = 0;
  std::int64_t wait = 0;
  if (!arguments || !to_number(arguments[0], "capacity", capacity) || !to_wait(arguments[1], Wait::others, wait))
    return nullptr;
  if (capacity == 0) return raise(SHMB_E_INVALID, "capacity is 0: receive_many() takes at least one message");
  if (capacity > 65536) capacity = 65536;  // "at most"; a lane has no more cells
  auto* const queue = as<Queue>(self);
  shmb_queue* const handle = queue_of(self);
  if (handle == nullptr) return nullptr;
  const Receiving receiving(queue);
  if (!receiving) return nullptr;
  std::vector<shmb_message*> messages(capacity);
  std::size_t made = 0, got = 0;
  shmb_error error{};
  int status = SHMB_OK;
  while (made < capacity && (status = shmb_message_new(&messages[made], &error)) == SHMB_OK) ++made;
  if (status == SHMB_OK)
    status = wait_in(queue, wait, [&](std::int64_t left) {
      return shmb_queue_receive_many(handle, messages.data(), capacity, left, &got, &error);
    });
  Ref list;
  if (status != kRaised && (status == SHMB_OK || got != 0)) list = Ref(PyList_New(static_cast<Py_ssize_t>(got)));
  else if (status != kRaised) raise(error);
  for (std::size_t i = 0; i < made; ++i) {
    if (!list || i >= got) {
      shmb_message_free(messages[i]);
      continue;
    }
    PyObject* const message = make_message(queue, messages[i]);
    if (message == nullptr || PyList_SetItem(list.get(), static_cast<Py_ssize_t>(i), message) != 0) list = Ref();
  }
  return list.release();
}

PyObject* receive_async(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  return call_python("shmbroker.aio", "receive", self, given, count, names);
}
PyObject* iterate(PyObject* self) { return call_python("shmbroker.aio", "messages", self, nullptr, 0, nullptr); }

PyObject* fileno(PyObject* self, PyObject*) {
  shmb_queue* const handle = queue_of(self);
  if (handle == nullptr) return nullptr;
  int fd = -1;
  shmb_error error{};
  const int status =
      wait_in(as<Queue>(self), SHMB_FOREVER, [&](std::int64_t) { return shmb_queue_descriptor(handle, &fd, &error); });
  if (status == kRaised) return nullptr;
  return status == SHMB_OK ? PyLong_FromLong(fd) : raise(error);
}

PyObject* drain(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<1> drain_names = signature("drain", 1, 0, {"timeout"});
  const Arguments arguments(drain_names, given, count, names);
  std::int64_t wait = 0;
  if (!arguments || !to_wait(arguments[0], Wait::others, wait)) return nullptr;
  shmb_queue* const handle = queue_of(self);
  if (handle == nullptr) return nullptr;
  shmb_error error{};
  const int status =
      wait_in(as<Queue>(self), wait, [&](std::int64_t left) { return shmb_queue_drain(handle, left, &error); });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return raise(error);
  Py_RETURN_NONE;
}

PyObject* shutdown(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<1> shutdown_names = signature("shutdown", 0, 0, {"remove"});
  const Arguments arguments(shutdown_names, given, count, names);
  bool remove = false;
  if (!arguments || !to_flag(arguments[0], remove)) return nullptr;
  shmb_queue* const handle = queue_of(self);
  if (handle == nullptr) return nullptr;
  shmb_error error{};
  const int status = wait_in(as<Queue>(self), SHMB_FOREVER, [&](std::int64_t) {
    return shmb_queue_shutdown(handle, remove ? unsigned{SHMB_QUEUE_CLOSE_REMOVE} : 0U, &error);
  });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return raise(error);
  Py_RETURN_NONE;
}

PyObject* info(PyObject* self, PyObject*) {
  shmb_queue* const handle = queue_of(self);
  if (handle == nullptr) return nullptr;
  shmb_queue_info facts{};
  facts.size = sizeof(facts);
  shmb_error error{};
  if (shmb_queue_get_info(handle, &facts, &error) != SHMB_OK) return raise(error);
  return Row(Value::queue_info)
      .text(facts.kind < 4 ? kKinds[facts.kind] : "unknown")
      .text(role_name(facts.role))
      .number(facts.flags)
      .number(facts.cells)
      .number(facts.inline_bytes)
      .number(facts.readers)
      .number(facts.writers)
      .truth(facts.closed != 0)
      .number(facts.lanes)
      .number(facts.deaths)
      .number(facts.depth)
      .number(facts.lost)
      .number(facts.sent)
      .number(facts.received)
      .number(facts.expired)
      .number(facts.in_regions)
      .number(facts.pool)
      .text(facts.name)
      .done();
}

PyObject* close(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<2> close_names = signature("close", 0, 0, {"everybody", "remove"});
  const Arguments arguments(close_names, given, count, names);
  bool everybody = false, remove = false;
  if (!arguments || !to_flag(arguments[0], everybody) || !to_flag(arguments[1], remove)) return nullptr;
  auto* const queue = as<Queue>(self);
  if (queue->calls.closed) Py_RETURN_NONE;
  if (queue->borrowed != nullptr && !end_borrowed(queue->borrowed)) return nullptr;
  queue->close_flags =
      (everybody || remove ? unsigned{SHMB_QUEUE_CLOSE_ALL} : 0U) | (remove ? unsigned{SHMB_QUEUE_CLOSE_REMOVE} : 0U);
  // Threads that wait on it are woken by the end for everybody; else their waits go on.
  if (queue->close_flags != 0 && queue->calls.any())
    (void)shmb_queue_shutdown(queue->handle, queue->close_flags & SHMB_QUEUE_CLOSE_REMOVE, nullptr);
  close_handle(queue);
  Py_RETURN_NONE;
}
PyObject* leave(PyObject* self, PyObject*) { return close(self, nullptr, 0, nullptr); }
PyObject* enter(PyObject* self, PyObject*) { return queue_of(self) == nullptr ? nullptr : Py_NewRef(self); }

void deallocate(PyObject* self) {
  const KeptException kept;
  auto* const queue = as<Queue>(self);
  if (queue->weak != nullptr) PyObject_ClearWeakRefs(self);
  close_handle(queue);
  if (queue->pool != nullptr) drop(std::exchange(queue->pool, nullptr));
  Py_CLEAR(queue->pool_of);
  Py_CLEAR(queue->session);
  Py_CLEAR(queue->name);
  free_object(self);
}

PyObject* get_name(PyObject* self, void*) { return Py_NewRef(as<Queue>(self)->name); }
PyObject* get_kind(PyObject* self, void*) { return PyUnicode_FromString(kKinds[as<Queue>(self)->kind & 3]); }
PyObject* get_role(PyObject* self, void*) { return PyUnicode_FromString(role_name(as<Queue>(self)->role)); }
PyObject* get_pool(PyObject* self, void*) { return Py_NewRef(as<Queue>(self)->pool_of); }
PyObject* get_closed(PyObject* self, void*) { return PyBool_FromLong(as<Queue>(self)->calls.closed); }
PyGetSetDef properties[] = {
    {"name", get_name, nullptr, nullptr, nullptr},     {"kind", get_kind, nullptr, nullptr, nullptr},
    {"role", get_role, nullptr, nullptr, nullptr},     {"pool", get_pool, nullptr, nullptr, nullptr},
    {"closed", get_closed, nullptr, nullptr, nullptr}, {nullptr, nullptr, nullptr, nullptr, nullptr}};

constexpr int kFast = METH_FASTCALL | METH_KEYWORDS;
PyMethodDef methods[] = {
    {"send", as_function(queue_send), kFast, "Sends one message of one part or of a list of parts."},
    {"send_many", as_function(queue_send_many), kFast, "Sends messages in order; returns how many were sent."},
    {"receive", as_function(receive), kFast, "The next message."},
    {"receive_many", as_function(receive_many), kFast, "All messages that are there, at most `capacity`."},
    {"receive_small", as_function(receive_small), kFast,
     "The next message: as bytes if it is one small part, which is done then; else the Message."},
    {"receive_bytes", as_function(receive_bytes), kFast, "The next message, copied into one bytes object."},
    {"get_nowait", get_nowait, METH_NOARGS, "The next message, or Empty."},
    {"receive_async", as_function(receive_async), kFast, "The next message, in an event loop of asyncio."},
    {"fileno", fileno, METH_NOARGS, "The descriptor that is readable when there may be a message."},
    {"drain", as_function(drain), kFast, "Waits until all that was sent was taken."},
    {"shutdown", as_function(shutdown), kFast, "Ends the queue for everybody."},
    {"info", info, METH_NOARGS, "Its settings and how full it is."},
    {"close", as_function(close), kFast, "Closes own ends."},
    {"__reduce_ex__", cannot_pickle, METH_O, nullptr},
    {"__enter__", enter, METH_NOARGS, nullptr},
    {"__exit__", leave, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};
PyMemberDef members[] = {{"__weaklistoffset__", T_PYSSIZET, offsetof(Queue, weak), READONLY, nullptr},
                         {nullptr, 0, 0, 0, nullptr}};
PyType_Slot slots[] = {{Py_tp_doc, const_cast<char*>("Own ends of a queue between processes.")},
                       {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
                       {Py_tp_methods, methods},
                       {Py_tp_getset, properties},
                       {Py_tp_members, members},
                       {Py_am_aiter, reinterpret_cast<void*>(iterate)},
                       {0, nullptr}};
PyType_Spec spec = {"shmbroker._core.Queue", sizeof(Queue), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, slots};

Signature<13> open_names = signature("queue", 1, 1,
                                     {"name", "kind", "role", "cells", "inline_bytes", "drop_oldest", "expiring",
                                      "at_least_once", "create_only", "open_only", "spin", "wait", "timeout"});

// `open` opens it by the options, without the GIL.
template <class Open>
PyObject* open_queue(Session* session, Pool* pool, PyObject* const* given, Py_ssize_t count, PyObject* names,
                     Open&& open) {
  const Arguments arguments(open_names, given, count, names);
  shmb_queue_options options{};
  options.size = sizeof(options);
  const char* name = nullptr;
  std::uint32_t role = 2;
  bool flags[5] = {};
  std::int64_t wait = 0, timeout = 0;
  if (!arguments || !to_text(arguments[0], "name", name) || !to_choice(arguments[1], "kind", kKinds, 4, options.kind) ||
      !to_choice(arguments[2], "role", kRoles, 3, role) || !to_number(arguments[3], "cells", options.cells) ||
      !to_number(arguments[4], "inline_bytes", options.inline_bytes) || !to_flag(arguments[5], flags[0]) ||
      !to_flag(arguments[6], flags[1]) || !to_flag(arguments[7], flags[2]) || !to_flag(arguments[8], flags[3]) ||
      !to_flag(arguments[9], flags[4]) || !to_name_wait(arguments[11], wait) ||
      !to_wait(arguments[12], Wait::broker, timeout))
    return nullptr;
  const bool no_spin =
      arguments[10] != nullptr && PyFloat_Check(arguments[10]) != 0 && PyFloat_AsDouble(arguments[10]) == 0;
  const bool zero = arguments[10] != nullptr && PyLong_Check(arguments[10]) != 0 && PyObject_IsTrue(arguments[10]) == 0;
  if (no_spin || zero) options.spin_ns = SHMB_NO_WAIT;
  else if (!to_duration(arguments[10], "spin", 0, options.spin_ns)) return nullptr;
  if (name == nullptr) return raise(SHMB_E_INVALID, "a queue has a name");
  options.role = role + 1;
  for (unsigned i = 0; i < 5; ++i) options.flags |= flags[i] ? 1U << i : 0U;
  shmb_queue* handle = nullptr;
  shmb_error error{};
  const Call<Session> call(session);
  const int status = wait_for(
      wait > 0               ? wait
      : wait == SHMB_FOREVER ? wait
                             : timeout,
      [&](std::int64_t left) {
        options.wait_ns = wait > 0 ? left : wait;
        options.timeout_ns = wait != 0 ? timeout : left;
        return open(name, options, handle, error);
      },
      [&] { return call.over(); });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return raise(error);
  shmb_queue_info facts{};
  facts.size = sizeof(facts);
  auto* const queue = shmb_queue_get_info(handle, &facts, &error) == SHMB_OK ? make_object<Queue>(types.queue)
                                                                             : (raise(error), nullptr);
  if (queue == nullptr) {
    const KeptException kept;
    (void)shmb_queue_close(handle, 0, nullptr);
    return nullptr;
  }
  queue->handle = handle;
  queue->pool = pool != nullptr && pool->pool != nullptr ? share(pool->pool) : nullptr;
  queue->pool_of = Py_NewRef(pool != nullptr ? as_object(pool) : Py_None);
  queue->session = as<Session>(Py_NewRef(as_object(session)));
  queue->name = Py_NewRef(arguments[0]);
  queue->kind = facts.kind;
  queue->role = facts.role;
  queue->flags = facts.flags;
  queue->inline_bytes = facts.inline_bytes;
  return as_object(queue);
}

}  // namespace

void Queue::finish() {
  if (spare != nullptr) shmb_message_free(std::exchange(spare, nullptr));
  shmb_queue* const ended = std::exchange(handle, nullptr);
  if (ended == nullptr) return;
  const Unlocked unlocked;  // the broker answers
  (void)shmb_queue_close(ended, close_flags, nullptr);
}

PyObject* session_queue(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  shmb_session* const session = session_of(self);
  if (session == nullptr) return nullptr;
  return open_queue(as<Session>(self), nullptr, given, count, names,
                    [&](const char* name, const shmb_queue_options& options, shmb_queue*& queue, shmb_error& error) {
                      return shmb_queue_open_alone(session, name, &options, &queue, &error);
                    });
}

PyObject* pool_queue(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  auto* const pool = as<Pool>(self);
  if (pool->pool == nullptr) return raise_closed("pool");
  PoolHandle* const shared = share(pool->pool);
  PyObject* const queue =
      open_queue(pool->session, pool, given, count, names,
                 [&](const char* name, const shmb_queue_options& options, shmb_queue*& opened, shmb_error& error) {
                   return shmb_queue_open(shared->it, name, &options, &opened, &error);
                 });
  if (queue != nullptr && as<Queue>(queue)->pool == nullptr) as<Queue>(queue)->pool = share(shared);
  drop(shared);
  return queue;
}

bool add_queue(PyObject* module) { return add_type(module, spec, types.queue); }

}  // namespace shmb::python
