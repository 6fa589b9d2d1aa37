// SPDX-License-Identifier: Apache-2.0
// Pool: this process in a pool. Slots and queues share its handle, so the process leaves the pool with the last of
// them.
#include <array>
#include <cstddef>

#include "python/core/objects.hpp"

namespace shmb::python {

namespace {

PoolHandle* pool_of(PyObject* self) {
  PoolHandle* const pool = as<Pool>(self)->pool;
  return pool == nullptr ? raise_closed("pool") : pool;
}

// One call in a pool: another thread may close the Pool object meanwhile.
class InPool {
 public:
  explicit InPool(PoolHandle* pool) : pool_(share(pool)) {}
  InPool(const InPool&) = delete;
  InPool& operator=(const InPool&) = delete;
  ~InPool() { drop(pool_); }

 private:
  PoolHandle* pool_;
};

void deallocate(PyObject* self) {
  const KeptException kept;
  auto* const pool = as<Pool>(self);
  if (pool->weak != nullptr) PyObject_ClearWeakRefs(self);
  if (pool->pool != nullptr) drop(std::exchange(pool->pool, nullptr));
  Py_CLEAR(pool->session);
  free_object(self);
}

bool read_info(PoolHandle* pool, shmb_pool_info& facts) {
  facts = {};
  facts.size = sizeof(facts);
  shmb_error error{};
  if (shmb_pool_get_info(pool->it, &facts, &error) == SHMB_OK) return true;
  raise(error);
  return false;
}

PyObject* info(PyObject* self, PyObject*) {
  PoolHandle* const pool = pool_of(self);
  shmb_pool_info facts;
  if (pool == nullptr || !read_info(pool, facts)) return nullptr;
  Ref classes(PyTuple_New(facts.class_count));
  if (!classes) return nullptr;
  for (std::uint32_t i = 0; i < facts.class_count; ++i) {
    const auto& one = facts.classes[i];
    PyObject* const row =
        Row(Value::size_class_info).number(one.slot_size).number(one.slots).number(one.slots_used).done();
    if (row == nullptr || PyTuple_SetItem(classes.get(), i, row) != 0) return nullptr;
  }
  return Row(Value::pool_info)
      .number(facts.id)
      .number(facts.group)
      .number(facts.bytes)
      .number(facts.participant)
      .number(facts.participants)
      .number(facts.slots)
      .number(facts.slots_limit)
      .number(facts.slots_used)
      .number(facts.slots_own)
      .number(facts.slots_high)
      .number(facts.segments)
      .number(facts.queues)
      .number(facts.queues_limit)
      .number(facts.lanes)
      .number(facts.lanes_limit)
      .truth(facts.read_only != 0)
      .truth(facts.broken != 0)
      .add(classes.release())
      .done();
}

PyObject* acquire(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<2> acquire_names = signature("acquire", 2, 1, {"nbytes", "timeout"});
  const Arguments arguments(acquire_names, given, count, names);
  std::uint64_t length = 0;
  std::int64_t timeout = 0;
  if (!arguments || !to_number(arguments[0], "nbytes", length) || !to_wait(arguments[1], Wait::others, timeout))
    return nullptr;
  PoolHandle* const pool = pool_of(self);
  if (pool == nullptr) return nullptr;
  const InPool here(pool);
  shmb_slot slot{};
  shmb_error error{};
  // A pool that cannot grow has a free slot at hand, or answers at once that it has none.
  int status =
      pool->grows ? static_cast<int>(SHMB_E_FULL) : shmb_slot_acquire(pool->it, length, SHMB_NO_WAIT, &slot, &error);
  if (status == SHMB_E_FULL && (pool->grows || timeout != SHMB_NO_WAIT))
    status = wait_for(
        timeout, [&](std::int64_t left) { return shmb_slot_acquire(pool->it, length, left, &slot, &error); },
        [] { return false; });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return raise(error);
  return make_slot(pool, slot, 0, slot.length, false);
}

PyObject* find_slot(PyObject* self, PyObject* buffer) {
  PoolHandle* const pool = pool_of(self);
  return pool == nullptr ? nullptr : find(buffer, true, pool->id);
}

PyObject* remove(PyObject* self, PyObject*) {
  PoolHandle* const pool = pool_of(self);
  if (pool == nullptr) return nullptr;
  const InPool here(pool);
  shmb_error error{};
  const int status =
      wait_for(SHMB_FOREVER, [&](std::int64_t) { return shmb_pool_remove(pool->it, &error); }, [] { return false; });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return raise(error);
  Py_RETURN_NONE;
}

PyObject* close(PyObject* self, PyObject*) {
  PoolHandle* const pool = std::exchange(as<Pool>(self)->pool, nullptr);
  if (pool != nullptr) drop(pool);
  Py_RETURN_NONE;
}
PyObject* enter(PyObject* self, PyObject*) { return pool_of(self) == nullptr ? nullptr : Py_NewRef(self); }

PyObject* get_id(PyObject* self, void*) {
  PoolHandle* const pool = pool_of(self);
  return pool == nullptr ? nullptr : PyLong_FromUnsignedLongLong(pool->id);
}
PyObject* get_closed(PyObject* self, void*) { return PyBool_FromLong(as<Pool>(self)->pool == nullptr); }

PyGetSetDef properties[] = {{"id", get_id, nullptr, nullptr, nullptr},
                            {"closed", get_closed, nullptr, nullptr, nullptr},
                            {nullptr, nullptr, nullptr, nullptr, nullptr}};

constexpr int kFast = METH_FASTCALL | METH_KEYWORDS;
PyMethodDef methods[] = {{"info", info, METH_NOARGS, "How full it is."},
                         {"acquire", as_function(acquire), kFast, "Takes a free slot for so many bytes."},
                         {"queue", as_function(pool_queue), kFast, "Opens own ends of a queue of the pool."},
                         {"find", find_slot, METH_O, "The open slot in which a buffer lies, or None."},
                         {"remove", remove, METH_NOARGS, "Its name is free at once."},
                         {"close", close, METH_NOARGS, "Closes this handle."},
                         {"__reduce_ex__", cannot_pickle, METH_O, nullptr},
                         {"__enter__", enter, METH_NOARGS, nullptr},
                         {"__exit__", close, METH_VARARGS, nullptr},
                         {nullptr, nullptr, 0, nullptr}};

PyMemberDef members[] = {{"__weaklistoffset__", T_PYSSIZET, offsetof(Pool, weak), READONLY, nullptr},
                         {nullptr, 0, 0, 0, nullptr}};

PyType_Slot slots[] = {{Py_tp_doc, const_cast<char*>("This process in a pool of slots.")},
                       {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
                       {Py_tp_methods, methods},
                       {Py_tp_getset, properties},
                       {Py_tp_members, members},
                       {0, nullptr}};
PyType_Spec spec = {"shmbroker._core.Pool", sizeof(Pool), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, slots};

// (slot_size, slots) or (slot_size, slots, slots_limit)
bool to_class(PyObject* given, shmb_size_class& made) {
  const Ref fields(to_items(given, "a size class", "(slot_size, slots) or (slot_size, slots, slots_limit)"));
  if (!fields) return false;
  const Py_ssize_t count = PyTuple_Size(fields.get());
  if (count != 2 && count != 3)
    return raise(SHMB_E_INVALID, "a size class is (slot_size, slots) or (slot_size, slots, slots_limit)"), false;
  return to_number(PyTuple_GetItem(fields.get(), 0), "slot_size", made.slot_size) &&
         to_number(PyTuple_GetItem(fields.get(), 1), "slots", made.slots) &&
         to_number(count == 3 ? PyTuple_GetItem(fields.get(), 2) : nullptr, "slots_limit", made.slots_limit);
}

PyObject* make_pool(Session* session, shmb_pool* handle) {
  auto* const shared = new (std::nothrow) PoolHandle{handle, shmb_pool_id(handle), 1, true};
  auto* const pool = shared != nullptr ? make_object<Pool>(types.pool) : nullptr;
  if (pool == nullptr) {
    delete shared;
    shmb_pool_close(handle);
    return shared == nullptr ? PyErr_NoMemory() : nullptr;
  }
  pool->pool = shared;
  pool->session = as<Session>(Py_NewRef(as_object(session)));
  shmb_pool_info facts{};
  facts.size = sizeof(facts);
  if (shmb_pool_get_info(handle, &facts, nullptr) == SHMB_OK) {
    shared->grows = facts.slots < facts.slots_limit;
    shared->read_only = facts.read_only != 0;
  }
  return as_object(pool);
}

}  // namespace

PoolHandle* share(PoolHandle* pool) {
  ++pool->owners;
  return pool;
}

void drop(PoolHandle* pool) {
  if (--pool->owners != 0) return;
  shmb_pool_close(pool->it);
  delete pool;
}

PyObject* session_create_pool(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<12> create_names = signature("create_pool", 1, 0,
                                                {"classes", "name", "group", "keep", "lanes", "queues", "lane_bytes",
                                                 "replace", "populate", "huge", "timeout", "name_with_holders"});
  const Arguments arguments(create_names, given, count, names);
  shmb_pool_options options{};
  options.size = sizeof(options);
  bool keep = false, replace = false, populate = true, huge = true, with_holders = false;
  if (!arguments || !to_text(arguments[1], "name", options.name) || !to_number(arguments[2], "group", options.group) ||
      !to_keep(arguments[3], keep, options.keep_ns) || !to_number(arguments[4], "lanes", options.lanes) ||
      !to_number(arguments[5], "queues", options.queues) ||
      !to_number(arguments[6], "lane_bytes", options.lane_bytes) || !to_flag(arguments[7], replace) ||
      !to_flag(arguments[8], populate) || (arguments[9] != Py_None && !to_flag(arguments[9], huge)) ||
      !to_wait(arguments[10], Wait::broker, options.timeout_ns) ||
      !to_name_with_holders(as<Session>(self), arguments[11], options.name, keep, options.group, with_holders))
    return nullptr;
  std::array<shmb_size_class, SHMB_MAX_SIZE_CLASSES> classes{};
  if (arguments[0] != nullptr && arguments[0] != Py_None) {
    const Ref list(to_items(arguments[0], "classes", "a list or tuple of (slot_size, slots)"));
    if (!list) return nullptr;
    const auto wanted = static_cast<std::size_t>(PyTuple_Size(list.get()));
    if (wanted > classes.size())
      return raise(SHMB_E_INVALID, "a pool has at most %zu size classes, not %zu", classes.size(), wanted);
    for (std::size_t i = 0; i < wanted; ++i)
      if (!to_class(PyTuple_GetItem(list.get(), static_cast<Py_ssize_t>(i)), classes[i])) return nullptr;
    options.class_count = static_cast<std::uint32_t>(wanted);
    if (wanted != 0) options.classes = classes.data();
  }
  shmb_session* const session = session_of(self);
  if (session == nullptr) return nullptr;
  options.flags = (keep ? unsigned{SHMB_POOL_KEEP_GIVEN} : 0U) | (replace ? unsigned{SHMB_POOL_REPLACE} : 0U) |
                  (populate ? 0U : unsigned{SHMB_POOL_NO_POPULATE}) | (huge ? 0U : unsigned{SHMB_POOL_SMALL_PAGES}) |
                  (with_holders ? unsigned{SHMB_POOL_NAME_WITH_HOLDERS} : 0U);
  shmb_pool* pool = nullptr;
  shmb_error error{};
  const int status = wait_in(as<Session>(self), options.timeout_ns, [&](std::int64_t left) {
    options.timeout_ns = left;
    return shmb_pool_create(session, &options, &pool, &error);
  });
  if (status == kRaised) return nullptr;
  return status == SHMB_OK ? make_pool(as<Session>(self), pool) : raise(error);
}

PyObject* session_open_pool(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<4> open_names = signature("open_pool", 1, 1, {"where", "read_only", "wait", "timeout"});
  const Arguments arguments(open_names, given, count, names);
  shmb_pool_open_options options{};
  options.size = sizeof(options);
  const char* address = nullptr;
  bool read_only = false;
  std::int64_t wait = 0;
  if (!arguments || !to_flag(arguments[1], read_only) || !to_name_wait(arguments[2], wait) ||
      !to_wait(arguments[3], Wait::broker, options.timeout_ns))
    return nullptr;
  if (PyUnicode_Check(arguments[0]) != 0 ? !to_text(arguments[0], "the address", address)
                                         : !to_number(arguments[0], "the id of a pool", options.id))
    return nullptr;
  shmb_session* const session = session_of(self);
  if (session == nullptr) return nullptr;
  options.read_only = read_only ? 1 : 0;
  shmb_pool* pool = nullptr;
  shmb_error error{};
  const int status = wait_in(as<Session>(self), wait > 0 ? wait : SHMB_FOREVER, [&](std::int64_t left) {
    options.wait_ns = wait > 0 ? left : wait;
    return shmb_pool_open(session, address, &options, &pool, &error);
  });
  if (status == kRaised) return nullptr;
  return status == SHMB_OK ? make_pool(as<Session>(self), pool) : raise(error);
}

bool add_pool(PyObject* module) { return add_type(module, spec, types.pool); }

}  // namespace shmb::python
