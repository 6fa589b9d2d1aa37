// SPDX-License-Identifier: Apache-2.0
// See values.hpp. The fields stand in _core.pyi with their types, in the same order.
#include "python/core/values.hpp"

#include <array>
#include <cstring>
#include <iterator>

#include "python/core/arguments.hpp"

namespace shmb::python {

namespace {

using Field = PyStructSequence_Field;

#define SHMB_FIELD(name) {name, nullptr}
#define SHMB_END {nullptr, nullptr}
Field region_id_fields[] = {SHMB_FIELD("epoch"), SHMB_FIELD("id"), SHMB_FIELD("generation"), SHMB_END};
Field session_info_fields[] = {SHMB_FIELD("mode"),
                               SHMB_FIELD("started_by_us"),
                               SHMB_FIELD("uid"),
                               SHMB_FIELD("broker_uid"),
                               SHMB_FIELD("lost"),
                               SHMB_FIELD("protocol"),
                               SHMB_FIELD("epoch"),
                               SHMB_FIELD("session"),
                               SHMB_FIELD("group"),
                               SHMB_FIELD("socket"),
                               SHMB_FIELD("broker"),
                               SHMB_FIELD("how"),
                               SHMB_END};
Field region_info_fields[] = {SHMB_FIELD("id"),       SHMB_FIELD("length"),          SHMB_FIELD("bytes"),
                              SHMB_FIELD("group"),    SHMB_FIELD("populated"),       SHMB_FIELD("rights"),
                              SHMB_FIELD("state"),    SHMB_FIELD("pages"),           SHMB_FIELD("flags"),
                              SHMB_FIELD("recycled"), SHMB_FIELD("descriptor_kept"), SHMB_END};
Field region_stat_fields[] = {SHMB_FIELD("id"),
                              SHMB_FIELD("length"),
                              SHMB_FIELD("bytes"),
                              SHMB_FIELD("touched"),
                              SHMB_FIELD("group"),
                              SHMB_FIELD("owner_uid"),
                              SHMB_FIELD("state"),
                              SHMB_FIELD("pages"),
                              SHMB_FIELD("flags"),
                              SHMB_FIELD("holders"),
                              SHMB_FIELD("writers"),
                              SHMB_FIELD("tickets"),
                              SHMB_FIELD("creator_pid"),
                              SHMB_FIELD("created"),
                              SHMB_FIELD("keep"),
                              SHMB_FIELD("freed_at"),
                              SHMB_FIELD("group_name"),
                              SHMB_FIELD("name"),
                              SHMB_END};
Field group_fields[] = {SHMB_FIELD("id"), SHMB_FIELD("token"), SHMB_FIELD("name"), SHMB_END};
Field group_ending_fields[] = {SHMB_FIELD("members"), SHMB_FIELD("regions"), SHMB_FIELD("bytes_freed"), SHMB_END};
Field watch_fields[] = {SHMB_FIELD("id"), SHMB_FIELD("state"), SHMB_END};
Field event_fields[] = {SHMB_FIELD("kind"),     SHMB_FIELD("how"),
                        SHMB_FIELD("sequence"), SHMB_FIELD("watch"),
                        SHMB_FIELD("region"),   SHMB_FIELD("group"),
                        SHMB_FIELD("bytes"),    SHMB_FIELD("lost"),
                        SHMB_FIELD("uid"),      SHMB_FIELD("pid"),
                        SHMB_FIELD("regions"),  SHMB_FIELD("code"),
                        SHMB_FIELD("text"),     SHMB_END};
Field size_class_info_fields[] = {SHMB_FIELD("slot_size"), SHMB_FIELD("slots"), SHMB_FIELD("slots_used"), SHMB_END};
Field pool_info_fields[] = {SHMB_FIELD("id"),
                            SHMB_FIELD("group"),
                            SHMB_FIELD("bytes"),
                            SHMB_FIELD("participant"),
                            SHMB_FIELD("participants"),
                            SHMB_FIELD("slots"),
                            SHMB_FIELD("slots_limit"),
                            SHMB_FIELD("slots_used"),
                            SHMB_FIELD("slots_own"),
                            SHMB_FIELD("slots_high"),
                            SHMB_FIELD("segments"),
                            SHMB_FIELD("queues"),
                            SHMB_FIELD("queues_limit"),
                            SHMB_FIELD("lanes"),
                            SHMB_FIELD("lanes_limit"),
                            SHMB_FIELD("read_only"),
                            SHMB_FIELD("broken"),
                            SHMB_FIELD("classes"),
                            SHMB_END};
Field queue_info_fields[] = {SHMB_FIELD("kind"),
                             SHMB_FIELD("role"),
                             SHMB_FIELD("flags"),
                             SHMB_FIELD("cells"),
                             SHMB_FIELD("inline_bytes"),
                             SHMB_FIELD("readers"),
                             SHMB_FIELD("writers"),
                             SHMB_FIELD("closed"),
                             SHMB_FIELD("lanes"),
                             SHMB_FIELD("deaths"),
                             SHMB_FIELD("depth"),
                             SHMB_FIELD("lost"),
                             SHMB_FIELD("sent"),
                             SHMB_FIELD("received"),
                             SHMB_FIELD("expired"),
                             SHMB_FIELD("in_regions"),
                             SHMB_FIELD("pool"),
                             SHMB_FIELD("name"),
                             SHMB_END};
Field gpu_tensor_fields[] = {SHMB_FIELD("name"),    SHMB_FIELD("dtype"),  SHMB_FIELD("shape"),
                             SHMB_FIELD("strides"), SHMB_FIELD("offset"), SHMB_END};
#undef SHMB_FIELD
#undef SHMB_END

struct Kind {
  PyStructSequence_Desc description;
  PyTypeObject* type;
};
template <std::size_t count>
constexpr Kind kind(const char* name, Field (&fields)[count]) {
  return {{name, nullptr, fields, static_cast<int>(count) - 1}, nullptr};
}
Kind kinds[] = {
    kind("shmbroker._core.RegionId", region_id_fields),
    kind("shmbroker._core.SessionInfo", session_info_fields),
    kind("shmbroker._core.RegionInfo", region_info_fields),
    kind("shmbroker._core.RegionStat", region_stat_fields),
    kind("shmbroker._core.Group", group_fields),
    kind("shmbroker._core.GroupEnding", group_ending_fields),
    kind("shmbroker._core.Watch", watch_fields),
    kind("shmbroker._core.Event", event_fields),
    kind("shmbroker._core.SizeClassInfo", size_class_info_fields),
    kind("shmbroker._core.PoolInfo", pool_info_fields),
    kind("shmbroker._core.QueueInfo", queue_info_fields),
    kind("shmbroker._core.GpuTensor", gpu_tensor_fields),
};

const char* name_in(const char* const* names, std::size_t count, std::uint32_t number) {
  return number < count ? names[number] : "unknown";
}

const char* state_name(std::uint32_t state) {
  static constexpr const char* names[] = {"none", "created", "ready", "write_closed", "published", "freeing", "cached"};
  return name_in(names, std::size(names), state);
}

const char* pages_name(std::uint32_t pages) {
  static constexpr const char* names[] = {"unknown", "small", "huge", "mixed", "unpopulated"};
  return name_in(names, std::size(names), pages);
}

}  // namespace

bool add_values(PyObject* module) {
  for (Kind& one : kinds) {
    if (one.type == nullptr) one.type = PyStructSequence_NewType(&one.description);
    if (one.type == nullptr) return false;
    const char* const name = std::strrchr(one.description.name, '.') + 1;
    if (PyModule_AddObjectRef(module, name, reinterpret_cast<PyObject*>(one.type)) != 0) return false;
  }
  return true;
}

PyTypeObject* value_type(Value which) { return kinds[static_cast<std::size_t>(which)].type; }

Row::Row(Value which) : row_(PyStructSequence_New(value_type(which))) {}

Row& Row::add(PyObject* owned) {
  if (owned == nullptr) row_ = Ref();
  if (!row_) {
    Py_XDECREF(owned);
    return *this;
  }
  PyStructSequence_SetItem(row_.get(), next_++, owned);
  return *this;
}

Row& Row::text(std::string_view value) {
  return add(PyUnicode_DecodeUTF8(value.data(), static_cast<Py_ssize_t>(value.size()), "replace"));
}

Row& Row::region(const shmb_region_id& id) { return add(make_region_id(id)); }

Row& Row::keep(std::int64_t nanoseconds) {
  return nanoseconds == SHMB_KEEP_UNTIL_RELEASED ? text("released") : seconds(nanoseconds);
}

namespace {

// The epoch of the last identity that was made, as an object. A program has one broker, so its identities share it. It
// is recognised without being read, because to read a number of 64 bits takes as long as the rest of an identity.
struct {
  std::uint64_t number = 0;
  PyObject* object = nullptr;
} epoch;

PyObject* epoch_object(std::uint64_t number) {
  if (epoch.object != nullptr && epoch.number == number) return Py_NewRef(epoch.object);
  PyObject* const made = PyLong_FromUnsignedLongLong(number);
  if (made == nullptr) return nullptr;
  epoch.number = number;
  Py_XDECREF(std::exchange(epoch.object, Py_NewRef(made)));
  return made;
}

bool to_epoch(PyObject* object, std::uint64_t& number) {
  if (object == epoch.object) return number = epoch.number, true;
  return to_number(object, "the epoch of a RegionId", number);
}

}  // namespace

PyObject* make_region_id(const shmb_region_id& id) {
  return Row(Value::region_id).add(epoch_object(id.epoch)).number(id.id).number(id.generation).done();
}

bool is_region_id(PyObject* object) { return Py_IS_TYPE(object, value_type(Value::region_id)); }

bool to_region_id(PyObject* object, shmb_region_id& id) {
  id = {};
  return to_epoch(PyStructSequence_GetItem(object, 0), id.epoch) &&
         to_number(PyStructSequence_GetItem(object, 1), "the id of a RegionId", id.id) &&
         to_number(PyStructSequence_GetItem(object, 2), "the generation of a RegionId", id.generation);
}

PyObject* make_region_info(const shmb_region_info& info) {
  return Row(Value::region_info)
      .region(info.id)
      .number(info.length)
      .number(info.bytes)
      .number(info.group)
      .number(info.populated)
      .number(info.rights)
      .text(state_name(info.state))
      .text(pages_name(info.page_kind))
      .number(info.flags)
      .truth(info.recycled != 0)
      .truth(info.descriptor_kept != 0)
      .done();
}

PyObject* make_region_stat(const shmb_region_stat& stat) {
  return Row(Value::region_stat)
      .region(stat.id)
      .number(stat.length)
      .number(stat.bytes)
      .number(stat.touched)
      .number(stat.group)
      .number(stat.owner_uid)
      .text(state_name(stat.state))
      .text(pages_name(stat.page_kind))
      .number(stat.flags)
      .number(stat.holders)
      .number(stat.writers)
      .number(stat.tickets)
      .number(stat.creator_pid)
      .seconds(stat.created_ns)
      .keep(stat.keep_ns)
      .seconds(stat.freed_at_ns)
      .text(stat.group_name)
      .text(stat.name)
      .done();
}

}  // namespace shmb::python
